#!/usr/bin/env bash
# Measures trtla serve beside vLLM on this machine's CPU, in turns, with the same Hugging Face folder in bfloat16:
#   scripts/compare_peers.sh FOLDER                      1, 4 and 16 clients; makes .venv-plugins the first time (2 GB)
#   scripts/compare_peers.sh FOLDER --clients 1 --turns 5 --tokens 128
# Further options are those of scripts/compare_peers.py, which compares with any other server too.
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
setup_vllm
# An idle thread of OpenMP waits for a while by computing, which takes the cores of whoever measures.
export OMP_WAIT_POLICY=passive KMP_BLOCKTIME=0
# Both sides compute on all cores: vLLM would keep one for its server.
export VLLM_CPU_OMP_THREADS_BIND="0-$(($(nproc) - 1))" VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-2}"
export VLLM_NO_USAGE_STATS=1
peer=".venv-plugins/bin/python -m vllm.entrypoints.openai.api_server --model {model} --port {port} --dtype bfloat16"
peer="$peer --max-model-len 2048 --max-num-seqs 16"
ours=".venv/bin/python -m trtla serve -m {model} --port {port} --max-batch-size 16"
exec .venv/bin/python scripts/compare_peers.py "$folder" --name vLLM --peer "$peer" --ours "$ours" "$@"
