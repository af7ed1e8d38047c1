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
#     bash scripts/gpu_check.sh cpu                 # steps on two cores of the processor beside it; needs a C++ compiler
#
# s1  memory and products at their best; the kernels against float64; steps of 1B and 8B, by part
# s2  texts against the CPU's; trtla bench at 1B and 8B beside transformers
# s3  the tests that need a GPU, compute-sanitizer, trtla serve under load, memory, autotuned products
#
# Each stage ends in a table of figure, value, expectation and verdict: ok, slow, WRONG or not measured. It is in
# $OUT/STAGE.json too, and all that was printed in $OUT/STAGE.txt of the first stage (without OUT in /tmp/out).
# Exit codes: 0 nothing is wrong, 1 a figure is WRONG or a section failed, 2 usage, 3 something is missing.
# It runs by $PYTHON, else by .venv/bin/python where that sees a GPU, else by python3. The models are made in
# $PROBE_MODELS, without it in /tmp/trtla-gpu-check: 19 GB, to be deleted by `rm -r` afterwards.
# PROBE_DRY=1 runs the same on a CPU with tiny sizes. docs/gpu.md says what each figure decides.
set -uo pipefail

missing() { # a sentence
    echo "missing: $1"
    exit 3
}

absolute() { # a path, of the caller's folder where it is relative
    case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac
}

export OUT PROBE_MODELS
OUT=$(absolute "${OUT:-/tmp/out}")
PROBE_MODELS=$(absolute "${PROBE_MODELS:-/tmp/trtla-gpu-check}")
if [ -n "${PYTHON:-}" ]; then
    found=$(type -P "$PYTHON") || missing "PYTHON is $PYTHON, which is no program"
    PYTHON=$(absolute "$found")
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# What images with PyTorch, numpy and transformers may lack, and all that it needs itself; versions are those of
# constraints.txt.
packages="annotated-doc annotated-types anyio certifi charset-normalizer click exceptiongroup execnet fastapi gguf
    h11 httpcore httpx hypothesis idna iniconfig markdown-it-py mdurl opentelemetry-api packaging pluggy
    prometheus-client prompt-toolkit pydantic pydantic-core pygments pytest pytest-timeout pytest-xdist pyyaml
    requests rich safetensors sortedcontainers starlette tomli tqdm typing-extensions typing-inspection urllib3
    uvicorn wcwidth"

prepare() { # the Python that the wheels are for
    local package pin part pick=tail platforms=()
    [ "$1" = 3.10 ] && pick=head  # which has a pin of its own, before that of the others
    for pin in 2_28 2_27 2_17; do platforms+=(--platform "manylinux_${pin}_x86_64"); done
    part=$(mktemp -d)
    for package in $packages; do
        pin=$(grep -i "^$package==" constraints.txt | cut -d ' ' -f 1 | $pick -n 1)
        "${PYTHON:-python3}" -m pip download -q --no-deps --only-binary=:all: --python-version "$1" \
            --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 \
            -d "$part" "$pin" || { rm -rf "$part"; missing "$pin cannot be downloaded; .whl/ is as before"; }
    done
    chmod 755 "$part" && rm -rf .whl && mv "$part" .whl
    du -sh .whl
}

choose() { # the Python that runs all
    local one sees='import torch; assert torch.cuda.is_available()'
    [ "${PROBE_DRY:-}" = 1 ] && sees='import torch'
    for one in .venv/bin/python python3; do
        [ -z "${PYTHON:-}" ] && "$one" -c "$sees" 2>/dev/null && PYTHON=$one
    done
    PYTHON=${PYTHON:-python3}
    have=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || missing "$PYTHON is no Python that runs"
    echo "by $PYTHON, Python $have"
}

# Packages of .whl/ come before those that are installed.
setup() {
    export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"
    [ "${PROBE_DRY:-}" = 1 ] && export TRTLA_COMPILED=0  # a dry run waits for no compiler
    export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
    compgen -G '.whl/*.whl' >/dev/null || return
    local site made
    made=$(compgen -G '.whl/pydantic_core-*' | sed -E 's/.*-cp3([0-9]+)-.*/3.\1/')
    [ "${made:-$have}" = "$have" ] || missing "the wheels in .whl/ are for Python $made and $PYTHON is $have: \
\`scripts/gpu_check.sh prepare $have\` brings others, or PYTHON names another"
    site=/tmp/trtla-gpu-site-$(compgen -G '.whl/*.whl' | sort | cksum | cut -d ' ' -f 1)
    if [ ! -d "$site" ]; then
        "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site.$$" .whl/*.whl \
            || { rm -rf "$site.$$"; missing "pip cannot unpack .whl/ into $site"; }
        mv "$site.$$" "$site"
    fi
    export PYTHONPATH="$PWD:$site:$PYTHONPATH"
}

case ${1:-} in
    prepare) prepare "${2:-3.12}" ;;
    s1 | s2 | s3 | again)
        choose
        setup
        "$PYTHON" -W ignore scripts/gpu_probe "$@"
        ;;
    cpu)
        choose
        setup
        grep -m 1 '^flags' /proc/cpuinfo | grep -ow 'avx[^ ]*\|amx[^ ]*' | xargs
        taskset -c 0,1 "$PYTHON" -W ignore scripts/step_costs.py "${@:2}"
        taskset -c 0,1 scripts/product_costs.sh
        ;;
    *)
        sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' scripts/gpu_check.sh >&2
        exit 2
        ;;
esac
