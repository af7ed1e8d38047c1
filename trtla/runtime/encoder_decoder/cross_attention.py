"""What the decoder reads of prompts: keys and values of the encoder's output, made once a request.

They live as long as their request does, which nobody has to tell: when the request is gone, so are
they.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trtla.errors import TrtlaError
from trtla.runtime.executor import Request

LayerStates = tuple[Tensor, Tensor]
"""A layer's keys and values of a prompt, each [1, heads, prompt tokens, head_size]."""
PromptStates = tuple[LayerStates, ...]
"""Those of all layers."""


class EncodedPrompts:
    """Keys and values of the prompts in flight.

    Args:
        encode: makes them; called once a request.
    """

    def __init__(self, encode: Callable[[tuple[int, ...]], PromptStates]) -> None:
        self._encode = encode
        self._by_request: dict[int, PromptStates] = {}

    def __len__(self) -> int:
        return len(self._by_request)

    def of(self, request: Request) -> PromptStates:
        """Those of a request's prompt.

        Raises:
            TrtlaError: the request brings nothing for the encoder.
        """
        key = id(request)  # not used anew while the request lives, and forgotten when it ends
        found = self._by_request.get(key)
        if found is None:
            if request.encoder_ids is None:
                raise TrtlaError(
                    f"{request.label} has no encoder_ids", "give the encoder's input with it"
                )
            found = self._by_request[key] = self._encode(request.encoder_ids)
            weakref.finalize(request, self._by_request.pop, key, None).atexit = False
        return found


def attend_prompts(
    queries: Tensor, prompts: Sequence[LayerStates], counts: Sequence[int]
) -> Tensor:
    """Attention of packed tokens over their prompts, without scaling.

    Args:
        queries: [tokens, heads, head_size], feed by feed.
        prompts: a layer's keys and values for each feed.
        counts: tokens of each feed.

    Returns:
        [tokens, heads * head_size].
    """
    parts = [
        F.scaled_dot_product_attention(rows.transpose(0, 1)[None], keys, values, scale=1.0)[0]
        for rows, (keys, values) in zip(torch.split(queries, list(counts)), prompts, strict=True)
    ]
    return torch.cat(parts, dim=1).transpose(0, 1).flatten(1)
