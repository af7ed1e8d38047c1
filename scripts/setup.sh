# Makes .venv with trtla and pinned packages; sourced by demo.sh and test.sh, or run by hand:
#   bash scripts/setup.sh          everything for development
#   bash scripts/setup.sh demo     what the demo needs
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

# pip's many lines become one for each download.
setup_progress() {
    local line
    while IFS= read -r line; do
        case "$line" in
            *Downloading*.whl*"("*) line="${line##*Downloading }"; echo "    ${line##*/}" ;;
            "Installing collected"*) echo "    installing" ;;
        esac
    done
}

setup_stamp() {
    cat constraints.txt pyproject.toml | cksum
}

# $1: demo or dev
setup_venv() {
    local wanted stamp start
    if [ -f .venv/trtla-dev ] && [ "$(cat .venv/trtla-dev)" = "$(setup_stamp)" ]; then
        return 0
    fi
    stamp=".venv/trtla-$1"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(setup_stamp)" ]; then
        return 0
    fi
    setup_python || return 1
    start=$SECONDS
    case "$1" in
        demo) wanted=(-e . rouge-score) ;;
        *) wanted=(-e '.[dev]') ;;
    esac
    echo "==> making .venv with $("$PYTHON" --version)"
    "$PYTHON" -m venv .venv || return 1
    echo "==> installing packages; the first time this downloads PyTorch"
    .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off \
        -c constraints.txt "${wanted[@]}" | setup_progress
    if [ "${PIPESTATUS[0]}" -ne 0 ]; then
        setup_fail "pip could not install the packages" "see its messages above; is the network reachable?"
        return 1
    fi
    setup_stamp >"$stamp"
    echo "==> set up in $((SECONDS - start)) s"
}

# TRTLA, the program that a script runs, unless the caller has named one.
setup_trtla() {
    if [ -z "${TRTLA:-}" ]; then
        setup_venv demo || return 1
        TRTLA=.venv/bin/trtla
    fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -eu
    cd "$(dirname "$0")/.."
    setup_venv "${1:-dev}"
fi
