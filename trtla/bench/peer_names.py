"""The peers by name, and which of them need a package that is not here; nothing of ours beside.

What they do is in trtla.bench.peers and trtla.bench.llama_cpp.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from trtla.errors import TrtlaError

HUGGING_FACE = ("hf", "hf-prompt-lookup", "hf-assisted")
LLAMA_CPP_LOOKUP = "llama.cpp-prompt-lookup"
LLAMA_CPP = ("llama.cpp", LLAMA_CPP_LOOKUP)
PEERS = (*HUGGING_FACE, *LLAMA_CPP)
BATCHING = ("hf",)
"""The peers that decode several prompts together."""

INSTALL_LLAMA_CPP = "pip install 'trtla[bench]' (it compiles llama.cpp), or leave the peer away"
_PACKAGES = {"llama_cpp": "llama-cpp-python", "gguf": "gguf"}


def check_installed(names: Iterable[str]) -> None:
    """Refuse peers before a model is loaded.

    Raises:
        TrtlaError: a package that one of them needs is not installed.
    """
    asked = [name for name in names if name in LLAMA_CPP]
    missing = [package for module, package in _PACKAGES.items() if find_spec(module) is None]
    if asked and missing:
        raise TrtlaError(
            f'--compare {asked[0]} needs the package "{missing[0]}"', INSTALL_LLAMA_CPP
        )
