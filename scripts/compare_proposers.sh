#!/usr/bin/env bash
# Measures vLLM on this machine's CPU without drafts, with its n-grams, its suffixes and trtla's proposer, in turns:
#   scripts/compare_proposers.sh FOLDER                                makes .venv-plugins the first time (2 GB)
#   scripts/compare_proposers.sh FOLDER --prompts spec_bench.jsonl --num-prompts 2 --tokens 64
# Further options are those of scripts/compare_proposers.py. TRTLA_VLLM_PYTHON names the Python of another environment
# with vLLM (`suffix` needs arctic-inference there), DTYPE its arithmetic (bfloat16).
set -eu
if [ $# = 0 ]; then
    sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
fi
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_venv dev
if [ -z "${TRTLA_VLLM_PYTHON:-}" ]; then
    setup_vllm
    TRTLA_VLLM_PYTHON="$PWD/.venv-plugins/bin/python"
fi
# An idle thread of OpenMP waits for a while by computing, which takes the cores of whoever measures.
export OMP_WAIT_POLICY=passive KMP_BLOCKTIME=0 PYTHONPATH="$PWD"
export VLLM_CPU_OMP_THREADS_BIND="0-$(($(nproc) - 1))" VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
export VLLM_NO_USAGE_STATS=1
vllm="$TRTLA_VLLM_PYTHON -m vllm.entrypoints.openai.api_server --model {model} --port {port} --dtype ${DTYPE:-bfloat16}"
vllm="$vllm --max-model-len 2048 --max-num-seqs 4"
drafts() {
    printf "%s --speculative-config '{{\"num_speculative_tokens\": 5, %s}}'" "$vllm" "$1"
}
servers=(--server plain "$vllm")
servers+=(--server ngram "$(drafts '"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5')")
if "$TRTLA_VLLM_PYTHON" -c 'import arctic_inference' 2>/dev/null; then
    servers+=(--server suffix "$(drafts '"method": "suffix"')")
fi
servers+=(--server trtla "$(drafts '"method": "custom_class", "model": "trtla.plugins.vllm.TreeProposer"')")
exec .venv/bin/python scripts/compare_proposers.py "$folder" "${servers[@]}" "$@"
