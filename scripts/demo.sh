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

prompts="--no-chat --input-file trtla/assets/prompts.jsonl --max-output-len 96 --temperature 0.5"
run() {
    printf '$ trtla run %s\n' "$*"
    # 3: a text differs between lookahead and plain decoding, which in float32 is rounding; the
    # lines printed say where.
    .venv/bin/trtla run "$@" || [ $? -eq 3 ]
}

printf '\nFour pieces of code in one batch, (7,7,7) in every step: fewer steps (green: accepted in parallel), but up to\n'
printf '84 tokens in each, which a model this small and a CPU do not repay.\n'
run --color "$color" --engine-dir "$out/engine" $prompts --check-lossless

printf '\nThe same with auto: each step feeds what pays on this machine, from measured costs.\n'
run --engine-dir "$out/engine" $prompts --check-lossless --request-lookahead auto >"$out/auto.txt"
head -n 1 "$out/auto.txt"
tail -n 9 "$out/auto.txt"

step summarize --engine-dir "$out/engine" --dataset trtla/assets/articles.jsonl \
    --max-ite 3 --output-len 32 --lookahead auto

printf '\ndone in %s s; try your own:\n' "$((SECONDS - started))"
echo ".venv/bin/trtla run --engine-dir $out/engine --input-text 'def main(' --stream"
