"""A model opened to be measured: what it runs on and in, and its tokenizer, which is taken away
from it so that no arm pays for text while it is timed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trtla.bench.prompt_sets import prompt_room
from trtla.errors import UsageError
from trtla.runtime.device import resolve_dtype

if TYPE_CHECKING:
    from trtla.runtime.llm import LLM
    from trtla.runtime.text import Tokenizer


class OpenedModel:
    """An `LLM` from which measuring takes over; it is used for nothing else.

    Args:
        llm: the model.
        device: what it was opened on.
        dtype: the type that was asked for; auto is the engine's.
        ignore_eos: whether texts go on behind an end token.

    Raises:
        UsageError: it has no tokenizer.
    """

    def __init__(self, llm: LLM, device: torch.device, dtype: str, *, ignore_eos: bool) -> None:
        self.llm, self.device = llm, device
        self.checkpoint = llm.engine.config.pretrained_config
        self.dtype = resolve_dtype(dtype, self.checkpoint.dtype, device)
        self.tokenizer = take_tokenizer(llm)
        if ignore_eos:
            llm.end_ids = frozenset()

    @property
    def dtype_name(self) -> str:
        """Such as `bfloat16`."""
        return str(self.dtype).removeprefix("torch.")

    def room(self, max_output_len: int) -> int:
        """Tokens that a prompt may have.

        Raises:
            UsageError: there are none.
        """
        return prompt_room(self.llm.limits, max_output_len)


def take_tokenizer(llm: LLM) -> Tokenizer:
    """The model's tokenizer, taken away from it: no arm pays for text.

    Raises:
        UsageError: it has none.
    """
    tokenizer, llm.tokenizer = llm.tokenizer, None
    if tokenizer is None:
        raise UsageError(
            f"{llm.engine.name} has no tokenizer files", "give them with --tokenizer-dir"
        )
    return tokenizer
