#!/usr/bin/env bash
# The whole way on the Llama model that ships with trtla: convert, build, run, summarize. Sets .venv up
# first if needed. Everything it writes is in demo-output/.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_venv demo

model=trtla/assets/tiny-llama
out=demo-output
color=always
[ -z "${NO_COLOR:-}" ] || color=never
started=$SECONDS

step() {
    printf '\n$ trtla %s\n' "$*"
    .venv/bin/trtla -q "$@"
}

mkdir -p "$out"
step convert --model-dir "$model" --output-dir "$out/checkpoint" --dtype float32 --force
step build --checkpoint-dir "$out/checkpoint" --output-dir "$out/engine" \
    --lookahead 7,7,7 --config configs/tiny-cpu.yaml --force

# Four requests at a time leave a CPU little to spare: they ask for less than the engine's 7,7,7.
printf '\nFour pieces of code in one batch, with lookahead and without. Green: accepted in parallel.'
run() {
    printf '\n$ trtla run %s\n' "$*"
    # 3: a text differs between the two, which in float32 is rounding; the lines above say where.
    .venv/bin/trtla run --color "$color" "$@" || [ $? -eq 3 ]
}
run --engine-dir "$out/engine" --input-file trtla/assets/prompts.jsonl \
    --max-output-len 96 --temperature 0.5 --request-lookahead 3,5,4 --check-lossless

step summarize --engine-dir "$out/engine" --dataset trtla/assets/articles.jsonl \
    --max-ite 3 --output-len 32

printf '\ndone in %s s; try your own:\n' "$((SECONDS - started))"
echo ".venv/bin/trtla run --engine-dir $out/engine --input-text 'def main(' --stream"
