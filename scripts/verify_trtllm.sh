#!/usr/bin/env bash
# Proves trtla on the TensorRT-LLM of this machine (0.20 to 1.2, GPU of compute capability 8.0 or newer):
#   scripts/verify_trtllm.sh [--docker IMAGE] [--stand-in] [--work-dir DIR] [--only STEP,...]
# It needs no trtla: it makes an environment of its own on top of PYTHON (python3). With --docker it runs
# in a container, such as nvcr.io/nvidia/tensorrt-llm/release:1.2.1; with --stand-in against the
# stand-in of tests/contract, without a GPU. Steps do not depend on each other, and all of them run.
# The results are report.md and verify-trtllm.tar.gz in the work folder, verify-trtllm. The last line is
# PASS, PASS (rounding only) or FAIL and the steps; the exit code is 0, 3 or 1.
set -eu
cd "$(dirname "$0")/.."

if [ "${1:-}" = --docker ]; then
    [ $# -ge 2 ] || { echo "error: --docker needs an image" >&2; exit 2; }
    image="$2"
    shift 2
    set -- docker run --rm --gpus all --ipc=host --ulimit memlock=-1 -v "$PWD":/w -w /w "$image" \
        bash scripts/verify_trtllm.sh "$@"
    printf '$ %s\n' "$*" >&2
    command -v docker >/dev/null 2>&1 || { echo "error: docker was not found" >&2; exit 1; }
    if ! command -v nvidia-smi >/dev/null 2>&1 && [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
        echo "error: no GPU of NVIDIA's is here, and the image is gigabytes" >&2
        echo "hint: run it where one is, or with --stand-in in place of --docker" >&2
        echo "FAIL environment"
        exit 1
    fi
    exec "$@"
fi

PYTHON="${PYTHON:-python3}"
if ! command -v "$PYTHON" >/dev/null 2>&1; then
    echo "error: $PYTHON was not found" >&2
    echo "hint: name the Python that has tensorrt_llm, e.g. PYTHON=python3.12 $0" >&2
    echo "FAIL environment"
    exit 1
fi
exec "$PYTHON" scripts/verify_trtllm "$@"
