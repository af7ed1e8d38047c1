#!/usr/bin/env bash
# What a machine with one NVIDIA GPU (Hopper) says about trtla, in three stages of at most 10 minutes.
#
#     bash scripts/gpu_check.sh prepare    # with a network: Python packages that the GPU machine may lack, into .whl/ (4 MB)
#     bash scripts/gpu_check.sh s1         # on the GPU machine, no network needed; .whl/ beside the sources
#     bash scripts/gpu_check.sh s2
#     bash scripts/gpu_check.sh s3
#
# s1  what is installed and its ceilings; the paged kernels against float64 (three types at once) and a model on them;
#     what SDPA costs at a new key length; draws; matrix products by layout and tokens; a step of 1B and 8B: eager, as a
#     graph, as a graph with fused small kernels; which kernels take the time. Checkpoints are made beside it.
# s2  texts of the shipped model: CPU, packed, paged, three triples, two temperatures; trtla bench at 1B and 8B.
# s3  the tests marked gpu; compute-sanitizer over the kernels; what autotuned products would give.
# again SECTION...   single sections of scripts/gpu_probe.py after a fix, e.g. `again check:bfloat16 step:8B`
#
# What is printed also goes to STAGE.txt in $OUT (/tmp/out without it). docs/performance.md, "On a GPU", says what to
# look at and what each figure decides.
set -u
stage=${1:-}
cd "$(dirname "$0")/.." || exit 1

# The image may lack pydantic, which trtla.formats.config imports, and prompt_toolkit; versions are those of constraints.txt.
prepare() {
    local package pin
    for package in pydantic pydantic-core annotated-types typing-inspection typing-extensions prompt_toolkit wcwidth; do
        pin=$(grep -im 1 "^${package//_/[-_]}==" constraints.txt | cut -d ' ' -f 1)
        python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
            --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
            --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d .whl "${pin:-$package}" || exit 1
    done
    du -sh .whl
}

setup() {
    out=${OUT:-/tmp/out}
    mkdir -p "$out"
    export XDG_CACHE_HOME=/tmp/xdg TRITON_CACHE_DIR=/tmp/triton HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
    export TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=4
    if [ ! -d /tmp/site/pydantic ]; then
        python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl || exit 1
    fi
    export PYTHONPATH=/tmp/site:$PWD
    command -v gcc >/dev/null || echo "NO gcc: Triton cannot build its launchers"
    python3 -c 'import pydantic, click, rich, yaml, safetensors, transformers, trtla; print("imports ok, trtla", trtla.__version__)' || exit 1
}

# Enlarged checkpoints with real acceptance, made while the GPU is probed. setsid: they outlive the command.
checkpoint() { # name, hidden size, layers, head size, intermediate size
    setsid nohup bash -c "python3 scripts/scale_llama.py --model-dir trtla/assets/tiny-llama --output-dir /tmp/$1 \
        --hidden-size $2 --num-hidden-layers $3 --num-attention-heads 32 --num-key-value-heads 8 --head-dim $4 \
        --intermediate-size $5 --vocab-size 128256 --dtype bfloat16 && touch /tmp/$1.ok" >"/tmp/$1.log" 2>&1 &
}

checkpoints() {
    [ -e /tmp/made ] && return
    touch /tmp/made
    checkpoint big1 2048 16 64 8192
    checkpoint big8 4096 32 128 14336
}

wait_for() {
    local left=150
    while [ ! -e "/tmp/$1.ok" ] && [ $left -gt 0 ]; do sleep 1; left=$((left - 1)); done
    [ -e "/tmp/$1.ok" ] || { echo "no checkpoint $1:"; cat "/tmp/$1.log"; return 1; }
}

probe() { # seconds, sections
    timeout "$1" python3 -W ignore scripts/gpu_probe.py "${@:2}" 2>&1 | tee -a "$out/$stage.txt"
}

s1() {
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem --format=csv,noheader
    checkpoints
    probe 60 env
    local dtype checks=()
    for dtype in bfloat16 float16 float32; do
        timeout 200 python3 -W ignore scripts/gpu_probe.py "check:$dtype" >"/tmp/check-$dtype.txt" 2>&1 &
        checks+=($!)
    done
    wait "${checks[@]}"
    cat /tmp/check-*.txt >>"$out/s1.txt"
    tail -n 12 /tmp/check-*.txt
    probe 60 stall
    probe 60 sample
    probe 80 gemm
    probe 90 step:1B
    probe 160 step:8B
}

bench() { # seconds, label, environment, arguments
    echo "##### $2" | tee -a "$out/$stage.txt"
    env "$3" timeout "$1" python3 -W ignore -m trtla bench --dtype bfloat16 --device cuda --prompts code "${@:4}" \
        2>/tmp/bench.err | tee -a "$out/$stage.txt"
    tail -n 3 /tmp/bench.err | tee -a "$out/$stage.txt"
}

s2() {
    probe 120 texts
    if wait_for big1; then
        bench 40 1B-as-it-is TRTLA_PAGED_ATTENTION=0 --engine-dir /tmp/big1 --lookahead 7,7,7 --num-prompts 1 --max-output-len 32 --rounds 1 --temperature 0
        bench 70 1B-no-cudnn TORCH_CUDNN_SDPA_DEPRIORITIZED=1 --engine-dir /tmp/big1 --lookahead 7,7,7 auto --num-prompts 2 --rounds 2 --temperature 0 --compare hf
        bench 90 1B-paged TRTLA_PAGED_ATTENTION=1 --engine-dir /tmp/big1 --lookahead 7,7,7 15,5,15 auto --num-prompts 3 --rounds 2 --temperature 0,0.5
    fi
    if wait_for big8; then
        bench 100 8B-no-cudnn TORCH_CUDNN_SDPA_DEPRIORITIZED=1 --engine-dir /tmp/big8 --lookahead 7,7,7 --num-prompts 2 --rounds 1 --temperature 0
        bench 130 8B-paged TRTLA_PAGED_ATTENTION=1 --engine-dir /tmp/big8 --lookahead 7,7,7 15,5,15 auto --num-prompts 3 --rounds 2 --temperature 0
    fi
    head -c 600 /tmp/xdg/trtla/trtla-cost-*.json
    nvidia-smi --query-gpu=memory.used,clocks.sm,temperature.gpu,power.draw --format=csv,noheader
}

s3() {
    export OMP_NUM_THREADS=1
    timeout 300 python3 -m pytest -m gpu -q -n 6 -p no:cacheprovider tests/runtime 2>&1 | tail -n 40 | tee -a "$out/s3.txt"
    if command -v compute-sanitizer >/dev/null; then
        PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 120 compute-sanitizer --tool memcheck \
            python3 -W ignore scripts/gpu_probe.py mini 2>&1 | tail -n 12 | tee -a "$out/s3.txt"
    fi
    probe 170 tune
}

case $stage in
    prepare) prepare ;;
    s1 | s2 | s3) setup; "$stage" ;;
    again) setup; probe 560 "${@:2}" ;;
    *)
        sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0" >&2
        exit 2
        ;;
esac
