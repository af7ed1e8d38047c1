#!/usr/bin/env bash
# Proves trtla on the TensorRT-LLM installed here (0.20 to 1.2, GPU of compute capability 8.0 or newer):
# convert, build, run on both executors, compare token by token, then the contract tests on the real
# library. Run it with the Python that has tensorrt_llm: PYTHON=python3.12 scripts/verify_trtllm.sh
# Arguments go to scripts/verify_trtllm.py. The report is verify-trtllm/report.md.
set -eu
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3}"
if ! "$PYTHON" -c 'import trtla' 2>/dev/null; then
    echo "==> installing trtla into $("$PYTHON" --version) with what its tests need"
    "$PYTHON" -m pip install -e . 'pytest>=8.3,<10' 'pytest-timeout>=2.3,<3' 'hypothesis>=6.100,<7'
fi
"$PYTHON" scripts/verify_trtllm.py "$@"
"$PYTHON" -m pytest tests/contract -m trtllm -q
