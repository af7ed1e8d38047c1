#!/usr/bin/env bash
# Measures trtla on a machine with one NVIDIA GPU, in three stages of at most 10 minutes each.
#
#     bash scripts/gpu_check.sh prepare             # with a network: wheels that the machine may lack, into .whl/;
#                                                   # for Python 3.12, else e.g. `prepare 3.11`
#     bash scripts/gpu_check.sh s1                  # on that machine, without a network; .whl/ beside the sources;
#                                                   # `s1 s2 s3` runs them in turn
#     bash scripts/gpu_check.sh s2
#     bash scripts/gpu_check.sh s3
#     bash scripts/gpu_check.sh again SECTION...    # single sections, such as check:bfloat16 step:8B
#
# s1  memory and products at their best; the kernels against float64; steps of 1B and 8B, by part
# s2  texts against the CPU's; trtla bench at 1B and 8B beside transformers
# s3  memory, trtla serve under load, the tests that need a GPU, compute-sanitizer, autotuned products
#
# Each stage ends in a table of figure, value, expectation and verdict: ok, slow, WRONG or not measured. It is in
# $OUT/STAGE.json too, and all that was printed in $OUT/STAGE.txt of the first stage (without OUT in /tmp/out).
# Exit codes: 0 nothing is wrong, 1 a figure is WRONG or a section failed, 2 usage, 3 something is missing.
# PROBE_DRY=1 runs the same on a CPU with tiny sizes. docs/gpu.md says what each figure decides.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

# What images with PyTorch and transformers often lack; versions are those of constraints.txt.
packages="pydantic pydantic-core annotated-types typing-inspection typing-extensions prompt-toolkit wcwidth gguf
    fastapi starlette uvicorn httpx prometheus-client annotated-doc opentelemetry-api hypothesis pytest-timeout
    pytest-xdist execnet"

prepare() { # the Python that the wheels are for
    local package pin platforms=()
    for pin in 2_28 2_27 2_17; do platforms+=(--platform "manylinux_${pin}_x86_64"); done
    rm -rf .whl
    for package in $packages; do
        pin=$(grep -i "^$package==" constraints.txt | cut -d ' ' -f 1 | tail -n 1)
        python3 -m pip download -q --no-deps --only-binary=:all: --python-version "$1" --implementation cp \
            "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d .whl \
            "${pin:-$package}" || exit 3
    done
    du -sh .whl
}

# Packages of .whl/ come before those that are installed.
setup() {
    export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"
    local site=/tmp/trtla-gpu-site
    [ "${PROBE_DRY:-}" = 1 ] && export TRTLA_COMPILED=0  # a dry run waits for no compiler
    if compgen -G '.whl/*.whl' >/dev/null && [ ! -d $site ]; then
        python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target $site .whl/*.whl || { rm -rf $site; exit 3; }
    fi
    export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}"
}

case ${1:-} in
    prepare) prepare "${2:-3.12}" ;;
    s1 | s2 | s3 | again)
        setup
        out=${OUT:-/tmp/out}
        mkdir -p "$out"
        python3 -W ignore scripts/gpu_probe.py "$@" 2>&1 | tee "$out/$1.txt"
        ;;
    *)
        sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0" >&2
        exit 2
        ;;
esac
