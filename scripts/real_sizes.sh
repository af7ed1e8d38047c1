#!/usr/bin/env bash
# The table of real sizes in docs/performance.md: load, memory, a prompt of 128 tokens, plain decoding and auto, beside llama.cpp
# and its own drafting on the same file, in turns, with one thread and with two.
#
#   scripts/real_sizes.sh OUTPUT_DIR [--sizes 135M,1B,3B,8B,1.8B] [--threads 1,2] [--rounds 5] [--quick]
#   scripts/real_sizes.sh OUTPUT_DIR --families [--threads 2] [--rounds 3]
#
# 135M is SmolLM2-135M-Instruct, downloaded once; 1.8B is the same enlarged, with the same predictions; 1B, 3B and
# 8B are random weights in the shapes of Llama 3; 1B-gemma3 is one in the shape of 1B and the family Gemma 3. Files are
# written once, to the user's cache (10 GB in all), those of families for the time of their measurement.
# llama.cpp takes part where its Python package is installed: pip install '.[bench]'; its ngram-mod where a
# llama-server is on the PATH. All of it takes some hours on two cores; OUTPUT_DIR keeps every document.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_trtla
export TRTLA PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"  # families are compared by the tests' models
exec "$(dirname "$(command -v "$TRTLA")")/python" scripts/real_sizes.py "$@"
