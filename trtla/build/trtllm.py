"""The TensorRT-LLM builder: not in this version, and it says so before anything is written."""

from __future__ import annotations

from typing import NoReturn

from trtla.errors import TrtlaError


def refuse() -> NoReturn:
    """Tell the way out.

    Raises:
        TrtlaError: always.
    """
    raise TrtlaError(
        "this version of trtla builds torch engines only, not tensorrt-llm ones",
        "add --backend torch",
    )
