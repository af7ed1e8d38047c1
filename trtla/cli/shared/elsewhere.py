"""Options and commands of llama.cpp, vLLM, Ollama and TensorRT-LLM that have no counterpart of a
similar name: what serves in their place. Those that have one are in `trtla.errors`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_INSTEAD = {
    "omit it, the model's chat template decides": "--chat-template-content-format "
    "--enable-auto-tool-choice --enable-reasoning --jinja --no-jinja --reasoning-format "
    "--reasoning-parser --tool-call-parser",
    "omit it, the model's files decide": "--generation-config --load-format --quantization "
    "--rope-freq-base --rope-freq-scale --rope-scale --rope-scaling --trust-remote-code "
    "--yarn-orig-ctx",
    "omit it, trtla sees to that": "--attention-backend --batch-size --block-size --cont-batching "
    "--disable-log-requests --disable-log-stats --enable-chunked-prefill --enforce-eager "
    "--flash-attn --gpu-memory-utilization --max-num-batched-tokens --mlock --mmap --no-mmap "
    "--no-warmup --numa --swap-space --ubatch-size -b -cb -fa -ub",
    "the server always has /metrics": "--metrics",
    "name the triple by --lookahead W,N,G": "--lookahead-config",
    "use --dtype fp8, w8a16, w4a16 or w4a16-awq": "--qformat",
    "use --group-size": "--awq-block-size",
    "keys and values have one type, --kv-cache-dtype int8": "--cache-type-k --cache-type-v "
    "-ctk -ctv",
    "name the draft model by --drafter draft:PATH": "--model-draft --spec-draft-model "
    "--speculative-model -md",
    "trtla chat talks, trtla run answers once": "--conversation --interactive --no-conversation "
    "-cnv -i -no-cnv",
    "a file as one prompt is -p - < FILE, a prompt a line --input-file FILE": "--file -f",
    "the shell writes line breaks: $'one\\ntwo'": "--escape -e",
    "a template may take --chat-template-kwargs '{\"enable_thinking\": false}'":
    "--reasoning --reasoning-budget",
    "put a TLS proxy in front": "--ssl-cert-file --ssl-certfile --ssl-key-file --ssl-keyfile",
    "name it by -m org/name@revision": "--revision",
    "set HF_TOKEN in the environment": "--hf-token -hft",
    "set HF_HOME in the environment": "--download-dir",
    "choose GPUs by CUDA_VISIBLE_DEVICES": "--main-gpu --split-mode --tensor-split -dev -mg "
    "-sm -ts",
    "trtla has nothing of the kind": "--context-shift --cpu-offload-gb "
    "--dry-multiplier --dynatemp-range --embedding --embeddings --enable-lora "
    "--limit-mm-per-prompt --lora --lora-modules --mirostat --mmproj "
    "--n-cpu-moe --override-kv --pipeline-parallel-size --pooling --reranking --rpc --samplers "
    "--slot-save-path --slots --typical --xtc-probability -mm -mu -ot -pp",
    "name a model on the hub as org/name, it is downloaded once": "pull",
    "a model is a folder or a file of yours, or in Hugging Face's cache": "list ls ps rm",
    "give --system, --chat-template and sampling flags in a preset, --config FILE": "create",
}  # fmt: skip
_HINTS = {name: hint for hint, names in _INSTEAD.items() for name in names.split()}
_ONE_DASH = {name for name in (*_HINTS, "-hf", "-lv", "-ngl", "-np", "-sys", "-tb", "-tp")
             if re.match("-[a-z]+-?[a-z]", name)}  # fmt: skip
"""Options that click would read as a one-letter option with a value."""


def of_one_dash(args: Sequence[str], taking: Callable[[str], bool]) -> str | None:
    """The first argument that is an option of llama.cpp with one dash and several letters.

    Args:
        taking: whether a flag takes the argument behind it.
    """
    end = args.index("--") if "--" in args else len(args)
    pairs = zip(["", *args], args[:end], strict=False)
    return next((arg for before, arg in pairs if arg in _ONE_DASH and not taking(before)), None)


def instead(name: str) -> str:
    """The beginning of a hint for an option or a command, or nothing."""
    return f"{_HINTS[name]}; " if name in _HINTS else ""
