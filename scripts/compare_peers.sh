#!/usr/bin/env bash
# The shipped model, plain and with lookahead, against transformers' generate and its prompt lookup, on
# the same prompts in one process, in turns. Arguments go to trtla bench: scripts/compare_peers.sh -o csv
# TRTLA names the program, e.g. TRTLA=.venv/bin/trtla; without it .venv is set up first if needed.
set -eu
cd "$(dirname "$0")/.."
if [ -z "${TRTLA:-}" ]; then
    . scripts/setup.sh
    setup_venv demo
    TRTLA=.venv/bin/trtla
fi
exec "$TRTLA" bench --engine-dir trtla/assets/tiny-llama --dtype float32 --lookahead 3,4,2 7,7,7 auto \
    --compare hf,hf-prompt-lookup "$@"
