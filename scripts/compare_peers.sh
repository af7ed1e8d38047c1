#!/usr/bin/env bash
# Measures trtla serve beside vLLM on this machine's CPU, in turns, with the same Hugging Face folder in bfloat16:
#   scripts/compare_peers.sh FOLDER                      1, 4 and 16 clients; makes .venv-plugins the first time (2 GB)
#   scripts/compare_peers.sh FOLDER --clients 1 --turns 5 --tokens 128
# Further options are those of scripts/compare_peers.py, which compares with any other server too.
set -eu
. "$(dirname "$0")/setup.sh"
[ $# -gt 0 ] || setup_usage "$0"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
setup_venv dev
setup_vllm_server 16
export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-2}"
ours=".venv/bin/python -m trtla serve -m {model} --port {port} --max-batch-size 16"
exec .venv/bin/python scripts/compare_peers.py "$folder" --name vLLM --peer "$VLLM --dtype bfloat16" --ours "$ours" "$@"
