#!/usr/bin/env bash
# Measures vLLM on this machine's CPU without drafts, with its n-grams, its suffixes and trtla's proposer, in turns:
#   scripts/compare_proposers.sh FOLDER                                makes .venv-plugins the first time (2 GB)
#   scripts/compare_proposers.sh FOLDER --prompts spec_bench.jsonl --num-prompts 2 --tokens 64
# Further options are those of scripts/compare_proposers.py. TRTLA_VLLM_PYTHON names the Python of another environment
# with vLLM (`suffix` needs arctic-inference there), DTYPE its arithmetic (bfloat16).
set -eu
. "$(dirname "$0")/setup.sh"
[ $# -gt 0 ] || setup_usage "$0"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
setup_venv dev
setup_vllm_server 4
export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}" PYTHONPATH="$PWD"
plain="$VLLM --dtype ${DTYPE:-bfloat16}"
drafts() {
    printf "%s --speculative-config '{{\"num_speculative_tokens\": 5, %s}}'" "$plain" "$1"
}
servers=(--server plain "$plain")
servers+=(--server ngram "$(drafts '"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5')")
if "$TRTLA_VLLM_PYTHON" -c 'import arctic_inference' 2>/dev/null; then
    servers+=(--server suffix "$(drafts '"method": "suffix"')")
fi
servers+=(--server trtla "$(drafts '"method": "custom_class", "model": "trtla.extras.hosts.vllm.TreeProposer"')")
exec .venv/bin/python scripts/compare_proposers.py "$folder" "${servers[@]}" "$@"
