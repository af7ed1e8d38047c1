#!/usr/bin/env bash
# Checks that each extra can be deleted: in a copy of the tree, its folder in trtla/extras and its tests are removed.
#   scripts/check_extras.sh                each of them alone, then all of them together
#   scripts/check_extras.sh ray hosts      these, each alone
#   scripts/check_extras.sh --whole        the default run of the core's tests without any extra
#   scripts/check_extras.sh --whole ray    the same without this one
# Checked are the help of every command, mypy, the collection of all tests of the core, and the tests of what knows which
# commands there are (layers, extras, help, completion, docs). The core's tests run without any extra at --whole alone: they
# take as long as all others.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
cache=${XDG_CACHE_HOME:-$HOME/.cache}/trtla/ci
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
frame=(tests/test_layers.py tests/test_extras.py tests/test_docs.py tests/cli/test_help.py tests/cli/test_completion.py)
core=(tests --ignore tests/extras)

pytest() {
    "$python" -m pytest -n auto --maxprocesses 8 --dist worksteal -x -o "cache_dir=$cache/extras-pytest" "$@"
}

# Prints what a command printed only where it fails.
quietly() { # label, command
    local label=$1 started=$SECONDS
    shift
    if "$@" >"$copy/log" 2>&1; then
        printf '    %-12s %4d s\n' "$label" $((SECONDS - started))
    else
        printf '    %-12s FAILED\n' "$label"
        tail -n 60 "$copy/log"
        exit 1
    fi
}

show_help() {
    "$python" -m trtla --help
    "$python" -c 'import click
from trtla.cli.commands import COMMANDS
for name, command in COMMANDS.items():
    print(click.Context(command, info_name=name).get_help())'
}

# Leaves the copy without some extras, and runs the checks in it.
check() { # whole or quick, extras ...
    local extra tree=$copy/tree kind=$1
    shift
    rm -rf "$tree" && mkdir "$tree"
    git ls-files -z | tar --create --null --files-from - | tar --extract --directory "$tree"
    for extra; do rm -r "${tree:?}/trtla/extras/$extra" "$tree/tests/extras/$extra"; done
    git -C "$tree" init -q && git -C "$tree" add --all  # some tests ask git for the files
    printf '==> without %s\n' "$*"
    (
        cd "$tree"
        export PYTHONPATH=$tree MYPY_CACHE_DIR=$cache/extras-mypy
        quietly "--help" show_help
        quietly "mypy" "$python" -m mypy
        quietly "collection" pytest -n 0 --collect-only -q "${core[@]}"
        if [ "$kind" = whole ]; then
            quietly "tests" pytest "${core[@]}"
        else
            quietly "its frame" pytest "${frame[@]}"
        fi
    )
}

kind=quick
[ "${1:-}" != --whole ] || { kind=whole && shift; }
mapfile -t all < <(git ls-files 'trtla/extras/*/__init__.py' | cut -d / -f 3 | sort -u)
extras=("$@")
if [ $# -eq 0 ]; then
    [ "$kind" = whole ] || extras=("${all[@]}")
fi
for extra in "${extras[@]}"; do check "$kind" "$extra"; done
[ $# -gt 0 ] || check "$kind" "${all[@]}"
