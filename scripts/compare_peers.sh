#!/usr/bin/env bash
# The shipped model, plain and with lookahead, against transformers' generate and its prompt lookup, and
# against llama.cpp where it is installed (pip install '.[bench]'), on the same prompts in one process,
# in turns. Arguments go to trtla bench: scripts/compare_peers.sh -o csv
# TRTLA names the program, e.g. TRTLA=.venv/bin/trtla; without it .venv is set up first if needed.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_trtla
peers=hf,hf-prompt-lookup
python="$(dirname "$(command -v "$TRTLA")")/python"
if "$python" -c 'from trtla.bench.peer_names import PEERS, check_installed; check_installed(PEERS)' 2>/dev/null; then
    peers=$peers,llama.cpp,llama.cpp-prompt-lookup
fi
exec "$TRTLA" bench --engine-dir trtla/assets/tiny-llama --dtype float32 --lookahead 3,4,2 7,7,7 auto \
    --compare "$peers" "$@"
