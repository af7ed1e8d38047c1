#!/usr/bin/env bash
# docs/compared.md: speed, lossless drafting, memory, load and first token of trtla beside other engines on the same GGUF
# files, each installed from PyPI into an environment of its own in the user's cache, in turns.
#
#   scripts/compared.sh OUTPUT_DIR [MODEL.gguf ...] [-- --tokens 64 --engines trtla,llama.cpp ...]
#
# Without a model it is SmolLM2-135M-Instruct, downloaded once. 16 texts of the first model are timed, and then 200 are
# compared in one round; the others, which may be random weights of scripts/real_sizes.sh, have 4. OUTPUT_DIR keeps the
# JSON documents. llama.cpp is compiled, by CC and CXX: what GCC 12 makes crashes on processors with AMX, and what clang
# makes does not. Its server's n-gram drafts are there where a llama-server is on the PATH. vLLM takes 2 GB. The machine
# has to be quiet for the first part: the page says how busy it was.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
[ $# -gt 0 ] || setup_usage "$0"
setup_trtla
python="$(dirname "$(command -v "$TRTLA")")/python"
out=$1
shift
mkdir -p "$out"
models=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    models+=("$1")
    shift
done
[ $# -eq 0 ] || shift
documents=()
measure() { # NAME [MODEL] OPTIONS
    local document="$out/${#documents[@]}-$1.json" # models may have one name
    "$python" scripts/compared.py "${@:2}" >"$document"
    documents+=("$document")
}
first=${models[0]:-}
measure speeds ${first:+"$first"} --texts 16 "$@"
for model in "${models[@]:1}"; do
    measure "$(basename "$model" .gguf)" "$model" --texts 4 "$@"
done
measure texts ${first:+"$first"} --texts 200 --rounds 1 "$@"
"$python" scripts/compared_page.py "${documents[@]}" >"$out/compared.md"
cp "$out/compared.md" docs/compared.md
