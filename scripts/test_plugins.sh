#!/usr/bin/env bash
# Tests the plugin for vLLM on vLLM's own server, with a tiny model on this machine's CPU:
#   scripts/test_plugins.sh                                  makes .venv-plugins the first time (2 GB)
#   TRTLA_VLLM_PYTHON=path/to/python scripts/test_plugins.sh that of an environment with vLLM
#   TRTLA_VLLM_MODEL=path/to/folder scripts/test_plugins.sh  another model
# Further arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_venv dev

setup_vllm
exec .venv/bin/python -m pytest -n 0 tests/extras/hosts/test_vllm_server.py "$@"
