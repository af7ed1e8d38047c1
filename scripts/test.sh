#!/usr/bin/env bash
# Runs the tests, one process for each core; sets .venv up first if needed. Arguments go to pytest:
#   scripts/test.sh tests/cli -x    -n 0 runs them in one process, for a debugger
#   scripts/test.sh --deep          with the dear ones: Triton, sanitizers, kills, documentation pages
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_venv dev
exec .venv/bin/python -m pytest -n auto --maxprocesses 8 --dist worksteal --durations 10 "$@"
