#!/usr/bin/env bash
# Runs the tests; sets .venv up first if needed. Arguments go to pytest: scripts/test.sh tests/cli -x
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_venv dev
exec .venv/bin/python -m pytest "$@"
