"""Rotary positions: the table of angles, and the rotation of queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from trtla.errors import UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.tensors import llama3_frequencies, yarn_frequencies, yarn_magnitude
from trtla.runtime.sequence import Feed


class Rotary:
    """Cosines and sines for packed tokens, in the half-rotation layout of Hugging Face's Llama."""

    def __init__(self, config: CheckpointConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype = config, dtype
        self._dynamic = config.rope_type == "dynamic"
        self._frequencies = frequencies(config).to(device)
        self._exponents = _exponents(config.head_size).to(device)
        yarn = config.rope_type == "yarn"
        self._magnitude = yarn_magnitude(config.rotary_scaling or {}) if yarn else None

    def __call__(self, positions: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cosine and sine [tokens, 1, head_size / 2].

        Args:
            positions: absolute position of each token, int64 [tokens].
            lengths: length of the text when the token was first seen (its prompt's, else position +
                1), int64 [tokens]; only dynamic scaling depends on it. None: none is longer than
                the trained length.
        """
        inverse = self._frequencies
        if self._dynamic and lengths is not None:
            inverse = self._dynamic_frequencies(lengths)
        angles = positions[:, None].float() * inverse
        cosine, sine = angles.cos(), angles.sin()
        if self._magnitude is not None:
            cosine, sine = cosine * self._magnitude, sine * self._magnitude
        return cosine.to(self._dtype)[:, None], sine.to(self._dtype)[:, None]

    def _dynamic_frequencies(self, lengths: Tensor) -> Tensor:
        """NTK frequencies, a row per token: the base grows beyond the trained length."""
        config = self._config
        limit, size = config.max_position_embeddings, config.head_size
        factor = float((config.rotary_scaling or {})["factor"])
        growth = factor * lengths.clamp(min=limit).float() / limit - (factor - 1)
        base = config.rotary_base * growth ** (size / (size - 2))
        return 1.0 / base[:, None] ** self._exponents


def _exponents(head_size: int) -> Tensor:
    return torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size


def frequencies(config: CheckpointConfig) -> Tensor:
    """Inverse frequencies at the trained length, float32 [head_size / 2]."""
    inverse = 1.0 / config.rotary_base ** _exponents(config.head_size)
    scaling = config.rotary_scaling or {}
    match config.rope_type:
        case "default" | "dynamic":
            return inverse
        case "linear":
            return inverse / float(scaling["factor"])
        case "llama3":
            return llama3_frequencies(inverse, scaling, config.max_position_embeddings)
        case "yarn":
            trained = config.max_position_embeddings
            return yarn_frequencies(inverse, scaling, config.rotary_base, trained)
    raise UsageError(
        f"rotary scaling {config.rope_type!r} is not supported",
        "supported are default, linear, dynamic, llama3 and yarn",
    )


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Apply the rotation to [tokens, heads, head_size]."""
    halves = states.view(*states.shape[:-1], 2, -1)
    rotated = (halves * cosine.unsqueeze(-2)).flatten(-2)
    first, second = states.chunk(2, dim=-1)
    rotated_first, rotated_second = rotated.chunk(2, dim=-1)
    rotated_first.addcmul_(second, sine, value=-1)
    rotated_second.addcmul_(first, sine)
    return rotated


class RotaryTable:
    """Where the forward finds each fed token's cosine and sine."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._rotary = Rotary(config, torch.float32, torch.device("cpu"))
        self._trained = config.max_position_embeddings if config.rope_type == "dynamic" else None
        self._cosine, self._sine = self._table(0)
        self._beyond = lru_cache(maxsize=4096)(self._row)

    def _table(self, count: int) -> tuple[Tensor, Tensor]:
        cosine, sine = self._rotary(torch.arange(count), None)
        return cosine.contiguous(), sine.contiguous()

    def _row(self, position: int, length: int) -> tuple[Tensor, Tensor]:
        """One token's, in a text longer than the trained length.

        A row at a time: the last bits of PyTorch's powers depend on how many it computes at once.
        """
        return self._rotary(torch.tensor([position]), torch.tensor([length]))

    def of(
        self, feeds: Sequence[Feed], positions: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Cosine and sine [rows, 1, head_size / 2], and each token's row."""
        flat = [position for row in positions for position in row]
        if max(flat) >= len(self._cosine):
            self._cosine, self._sine = self._table(max(2 * len(self._cosine), max(flat) + 256))
        if self._trained is not None:  # beyond it a row depends on the text's length as well
            pairs = zip(feeds, positions, strict=True)
            lengths = [length for feed, row in pairs for length in feed.lengths(row)]
            if max(lengths) > self._trained:
                return self._of_lengths(flat, lengths, self._trained)
        return self._cosine, self._sine, flat

    def _of_lengths(
        self, positions: Sequence[int], lengths: Sequence[int], trained: int
    ) -> tuple[Tensor, Tensor, list[int]]:
        keys = list(zip(positions, lengths, strict=True))
        places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        rows = [
            self._beyond(position, length) if length > trained
            else (self._cosine[position : position + 1], self._sine[position : position + 1])
            for position, length in places
        ]  # fmt: skip
        cosines, sines = zip(*rows, strict=True)
        return torch.cat(cosines), torch.cat(sines), [places[key] for key in keys]
