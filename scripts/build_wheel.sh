#!/usr/bin/env bash
# Builds wheels that need no compiler where they are installed, into OUT (dist):
#   scripts/build_wheel.sh [OUT]
# One for this machine's kind of processor; on x86-64 one for aarch64 as well, and the other way round,
# where a cross compiler is there: apt-get install g++-aarch64-linux-gnu
set -eu
out=$(realpath -m "${1:-dist}")
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_venv dev
exec .venv/bin/python scripts/build_wheel.py "$out"
