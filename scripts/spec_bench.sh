#!/usr/bin/env bash
# The table of docs/performance.md on real text: Spec-Bench's six categories and functions to complete, on a
# pretrained chat model; drafters, triples and auto beside plain decoding, and peers on the same file.
#
#   scripts/spec_bench.sh spec_bench.jsonl OUTPUT_DIR [MODEL.gguf]
#
# spec_bench.jsonl is the file of github.com/hemingkx/Spec-Bench. Without a model SmolLM2-135M-Instruct is
# downloaded. PROMPTS of each category (10), LEN tokens (64). llama.cpp joins where it is installed.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_trtla
python="$(dirname "$(command -v "$TRTLA")")/python"
questions=$1 out=$2
model=${3:-$("$python" -m trtla.data.sample_model)}
prompts=${PROMPTS:-10} len=${LEN:-64}
mkdir -p "$out"

"$python" - "$questions" "$prompts" >"$out/questions.jsonl" <<'PYTHON'
import collections, json, sys

kept = collections.Counter()
conversations = collections.Counter()
with open(sys.argv[1], encoding="utf-8") as file:
    lines = [json.loads(line) for line in file]
for line in lines:  # MT-Bench's eight categories are one, its questions taken from each in turn
    if len(line["turns"]) > 1:
        place, line["category"] = line["category"], "mt_bench"
        conversations[place] += 1
        line["order"] = conversations[place]
for line in sorted(lines, key=lambda line: line.pop("order", 0)):
    kept[line["category"]] += 1
    if kept[line["category"]] <= int(sys.argv[2]):
        print(json.dumps(line))
PYTHON

peers=hf,hf-prompt-lookup
if "$python" -c 'import llama_cpp' 2>/dev/null; then
    peers=$peers,llama.cpp,llama.cpp-prompt-lookup,llama.cpp-converted
fi
bench() {
    local name=$1
    shift
    "$TRTLA" bench -m "$model" --prompts "$out/questions.jsonl,trtla/assets/bench/functions.jsonl" \
        --num-prompts "$prompts" -n "$len" --respect-eos --rounds 1 --json "$@" >"$out/$name.json"
}
bench greedy --temperature 0 --lookahead 7,7,7 3,4,2 auto --drafter prompt-lookup ngram
bench sampled --temperature 0.7 --lookahead 3,4,2 auto --drafter prompt-lookup
bench batches --temperature 0,0.7 --batch-size 4 --lookahead auto --drafter prompt-lookup
# Peers take long to read a long prompt: two short ones of each category.
bench peers --temperature 0 --lookahead auto --compare "$peers" --num-prompts 2 --rounds 2 \
    --categories translation,qa,math_reasoning,functions
"$python" scripts/spec_bench_table.py "$out"/{greedy,sampled,batches,peers}.json
