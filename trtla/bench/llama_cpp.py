"""llama.cpp as a peer, through llama-cpp-python: plain decoding, and with prompt lookup.

It runs the GGUF file that a model was read from as it is, or the engine's own weights from a file
that lives only while they are loaded, on the same ids and threads. Its C functions are called
directly: the time is llama.cpp's, not Python's.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtla.bench.arms import (
    LLAMA_CPP_CONVERTED,
    LLAMA_CPP_LOOKUP,
    LOOKUP_TOKENS,
    Arm,
    Options,
    PeerArm,
    Run,
)
from trtla.bench.llama_cpp_model import Context, Model
from trtla.data.prompt_sets import Ids
from trtla.formats.config import DTYPES
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    import torch

    from trtla.formats.engine import Engine

_GRAIN = 256
"""Room for texts is made in steps of so many tokens."""

Text = npt.NDArray[np.intc]
Draft = Callable[[Text], Sequence[int]]
"""Given the text so far, guesses what comes next."""


class LlamaCpp:
    """A model in llama.cpp, ready for its arms.

    Args:
        dtype: of the weights that are converted.
        end_ids: what ends a text.
        converted: run the engine's own weights also where it was read from a GGUF file.
    """

    def __init__(
        self,
        engine: Engine,
        device: torch.device,
        dtype: torch.dtype,
        end_ids: frozenset[int],
        *,
        converted: bool = False,
    ) -> None:
        """Load the weights.

        Raises:
            TrtlaError: llama-cpp-python is not usable, or cannot run this model.
        """
        self._model = Model(engine, device, dtype, converted=converted)
        self._end_ids, self.weight_type = end_ids, self._model.type
        self.without_amx = self._model.without_amx
        self.library = self._model.library
        self._context = Context(self._model, _GRAIN)

    def decode(
        self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams], options: Options
    ) -> Run:
        """Decode one prompt; with options by llama-cpp-python's prompt lookup."""
        return self._decode(prompts[0], sampling[0], _lookup(options) if options else None)

    def _decode(self, prompt: Ids, sampling: SamplingParams, draft: Draft | None) -> Run:
        """Decode one prompt; `draft` guesses tokens that are fed together with the last one."""
        import torch

        context = self._with_room(len(prompt) + sampling.max_output_len + max(LOOKUP_TOKENS) + 1)
        context.start(torch.get_num_threads())
        output: list[int] = []
        seen: list[float] = []
        start = time.perf_counter()
        with self._sampler(sampling) as sampler:
            for tokens in self._tokens(context, prompt, sampler, draft):
                seen.append(time.perf_counter() - start)
                output, ended = self._cut([*output, *tokens], sampling.max_output_len)
                if ended:
                    break
        return Run(
            outputs=(tuple(output),),
            time_s=time.perf_counter() - start,
            first_s=(seen[0],),
            last_s=(seen[-1],),
            steps=context.forwards - 1,
            fed=context.fed,
            forwards=context.forwards,
            forward_s=context.seconds,
            weight_bytes=self._model.nbytes,
        )

    def _with_room(self, tokens: int) -> Context:
        if tokens > self._context.room:
            self._context = Context(self._model, -(-tokens // _GRAIN) * _GRAIN)
        return self._context

    def _cut(self, output: list[int], limit: int) -> tuple[list[int], bool]:
        """The output up to its first end id or the limit, and whether it ends there."""
        ends = (i for i, token in enumerate(output, 1) if token in self._end_ids)
        length = min(next(ends, limit), limit)
        return output[:length], len(output) >= length

    def _tokens(
        self, context: Context, prompt: Ids, sampler: Any, draft: Draft | None
    ) -> Iterator[list[int]]:
        """What each forward brings, without end."""
        text = np.empty(context.room, np.intc)
        text[: len(prompt)] = prompt
        length, guessed, fed = len(prompt), list[int](), list(prompt)
        context.feed(fed, 0, 1)
        while True:
            tokens = self._accepted(context, sampler, guessed, len(fed))
            yield tokens
            text[length : length + len(tokens)] = tokens
            length += len(tokens)
            if len(tokens) <= len(guessed):
                context.cut(length - 1)
            guessed = [] if draft is None else [int(token) for token in draft(text[:length])]
            fed = [tokens[-1], *guessed]
            context.feed(fed, length - 1, len(fed))

    def _accepted(
        self, context: Context, sampler: Any, guessed: Sequence[int], fed: int
    ) -> list[int]:
        """Draw a token at every position, up to the first that was not guessed."""
        tokens: list[int] = []
        for row, guess in enumerate([*guessed, None], fed - len(guessed) - 1):
            tokens.append(self.library.llama_sampler_sample(sampler, context.pointer, row))
            if tokens[-1] != guess:
                break
        return tokens

    @contextmanager
    def _sampler(self, sampling: SamplingParams) -> Iterator[Any]:
        """llama.cpp's own sampler, its filters in the engine's order."""
        library = self.library
        chain = library.llama_sampler_chain_init(library.llama_sampler_chain_default_params())
        if sampling.greedy:
            parts = [library.llama_sampler_init_greedy()]
        else:
            parts = [library.llama_sampler_init_temp(sampling.temperature)]
            if sampling.top_k:
                parts.append(library.llama_sampler_init_top_k(sampling.top_k))
            if sampling.top_p < 1:
                parts.append(library.llama_sampler_init_top_p(sampling.top_p, 1))
            parts.append(library.llama_sampler_init_dist(sampling.seed % 2**31))
        for part in parts:
            library.llama_sampler_chain_add(chain, part)
        try:
            yield chain
        finally:
            library.llama_sampler_free(chain)


def _lookup(options: Options) -> Draft:
    speculative: Any = importlib.import_module("llama_cpp.llama_speculative")
    draft: Draft = speculative.LlamaPromptLookupDecoding(**options)
    return draft


def llama_cpp_arms(names: Sequence[str], open_model: Callable[[bool], LlamaCpp]) -> list[Arm]:
    """The peers by name.

    Args:
        open_model: loads the model, its weights converted or not.
    """
    lookups: list[Options] = [{"num_pred_tokens": number} for number in LOOKUP_TOKENS]
    opened = cache(open_model)
    arms: list[Arm] = []
    for name in names:
        inner = opened(name == LLAMA_CPP_CONVERTED)
        choices = lookups if name == LLAMA_CPP_LOOKUP else ({},)
        kind = inner.weight_type
        plain = kind if kind in DTYPES else None
        arms.append(PeerArm(name, inner.decode, choices, weight_type=kind, compute_type=plain))
    return arms
