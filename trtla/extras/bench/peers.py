"""The names of peers, and the GGUF file that llama.cpp runs."""

from __future__ import annotations

from pathlib import Path

from trtla.errors import UsageError, install_hint
from trtla.formats.gguf.header import is_gguf, shards
from trtla.formats.hub import hub_folder

LOOKUP_TOKENS = (3, 5, 10, 20)
"""The settings of prompt lookup that are tried; the fastest on the first batch is measured."""
HUGGING_FACE = ("hf", "hf-prompt-lookup", "hf-assisted")
LLAMA_CPP_LOOKUP = "llama.cpp-prompt-lookup"
LLAMA_CPP_CONVERTED = "llama.cpp-converted"
LLAMA_CPP = ("llama.cpp", LLAMA_CPP_LOOKUP, LLAMA_CPP_CONVERTED)
"""Peers that run a GGUF file; the first two run it as it is."""
PEERS = (*HUGGING_FACE, *LLAMA_CPP)
BATCHING = ("hf",)
"""Peers that decode several prompts together."""
INSTALL_LLAMA_CPP = f"{install_hint('bench')} (it compiles llama.cpp), or omit the peer"


def gguf_of(model: str, hf_model_dir: str | None) -> Path:
    """Return the GGUF file for llama.cpp: the one that is named for peers, or the model itself."""
    from trtla.formats.gguf.folder import weight_file  # brings pydantic

    for named in filter(None, (hf_model_dir, model)):
        path = hub_folder(named)
        file = weight_file(path) or path
        if is_gguf(file):
            return shards(file)[0]
    raise UsageError(
        f"llama.cpp runs GGUF files, and {hf_model_dir or model} is none",
        "give the model as one with --hf-model-dir MODEL.gguf",
    )
