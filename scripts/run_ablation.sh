#!/usr/bin/env bash
# All drafters against plain decoding on the shipped tasks, unattended: rows in ablation_results.csv, means
# and deviations in ablation_results_means.csv. Started again, it goes on where it was interrupted.
# Arguments go to trtla bench: scripts/run_ablation.sh --engine-dir ENGINE --device cuda --repeats 5
# TRTLA names the program, e.g. TRTLA=.venv/bin/trtla; without it .venv is set up first if needed.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_trtla
exec "$TRTLA" bench --ablation --full --engine-dir trtla/assets/tiny-llama --dtype float32 --lookahead 3,4,2 "$@"
