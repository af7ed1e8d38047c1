"""Rotary positions: their frequencies, and the table of angles that the compiled forward reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy import ndarray

from trtla.errors import UsageError
from trtla.formats.config import ROPE_TYPES, CheckpointConfig
from trtla.formats.rope_scaling import (
    llama3_frequencies,
    longrope_factors,
    yarn_frequencies,
    yarn_magnitude,
)

_Angles = tuple[ndarray, ndarray]
"""Cosine and sine, float32 [rows, head_size / 2]."""


def exponents(head_size: int) -> ndarray:
    """The exponent of the base for each frequency, float32 [head_size / 2]."""
    result: ndarray = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    return result


def powers(base: ndarray | float, exponent: ndarray) -> ndarray:
    """base ** exponent in float32, rounded once: the same bits on every processor."""
    return np.power(np.asarray(base, np.float64), exponent.astype(np.float64)).astype(np.float32)


def rotary_configs(config: CheckpointConfig) -> tuple[CheckpointConfig, ...]:
    """The model's config for each way in which its layers rotate queries and keys."""
    if config.unrotated_layers:
        return config, config.model_copy(update={"rotary_pct": 0.0, "rotary_scaling": None})
    if config.local_rotary_base is not None:
        local = {"rotary_base": config.local_rotary_base, "rotary_scaling": None}
        return config, config.model_copy(update=local)
    return (config,)


def layer_rotaries(config: CheckpointConfig) -> tuple[int, ...]:
    """The index in `rotary_configs` of each layer."""
    layers = range(config.num_hidden_layers)
    local = [False for _ in layers] if config.local_rotary_base is None else config.windows
    return tuple(int(index in config.unrotated_layers or bool(local[index])) for index in layers)


def frequencies(config: CheckpointConfig) -> ndarray:
    """Inverse frequencies at the trained length, float32 [head_size / 2]; 0: no rotation."""
    inverse = _rotated_frequencies(config)
    still = np.zeros(config.head_size // 2 - len(inverse), np.float32)
    return np.concatenate((inverse, still)) if len(still) else inverse


def _rotated_frequencies(config: CheckpointConfig) -> ndarray:
    wavelengths = powers(config.rotary_base, exponents(config.rotary_size))
    inverse: ndarray = 1.0 / wavelengths
    scaling = config.rotary_scaling or {}
    match config.rope_type:
        case "default" | "dynamic":
            return inverse
        case "linear":
            divided: ndarray = inverse / float(scaling["factor"])
            return divided
        case "llama3":
            return llama3_frequencies(inverse, scaling, config.max_position_embeddings)
        case "yarn":
            trained = config.max_position_embeddings
            return yarn_frequencies(inverse, scaling, config.rotary_base, trained)
        case "longrope":
            factors = np.array(longrope_factors(scaling), np.float32)
            return np.asarray(1.0 / (factors * wavelengths))
    raise UsageError(
        f"rotary scaling {config.rope_type!r} is not supported",
        f"supported are {', '.join(ROPE_TYPES)}",
    )


def magnitude(config: CheckpointConfig) -> float:
    """The factor of the cosines and sines of rotated dimensions."""
    scaling = config.rotary_scaling or {}
    if config.rope_type == "longrope":
        return float(scaling["attention_factor"])
    return yarn_magnitude(scaling) if config.rope_type == "yarn" else 1.0


def magnitudes(config: CheckpointConfig) -> ndarray:
    """The factor of the cosine and sine of each of a head's pairs, float32 [head_size / 2]."""
    rotated = np.arange(config.head_size // 2) < config.rotary_size // 2
    return np.where(rotated, magnitude(config), 1.0).astype(np.float32)


class RotaryTable:
    """The rotary table: cosines and sines of fed tokens, by position."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config, self._magnitude = config, magnitudes(config)
        self._frequencies = frequencies(config)
        self._trained = config.max_position_embeddings if config.rope_type == "dynamic" else None
        self._cosine, self._sine = self._angles(np.arange(0), self._frequencies)
        self._beyond = lru_cache(maxsize=4096)(self._row)

    def _angles(self, positions: ndarray, inverse: ndarray) -> _Angles:
        """Exact cosines and sines, as float32, of angles in float32 as in the model's training."""
        angles = (positions[:, None].astype(np.float32) * inverse).astype(np.float64)
        cosine, sine = (f(angles).astype(np.float32) * self._magnitude for f in (np.cos, np.sin))
        return cosine, sine

    def _row(self, position: int, length: int) -> _Angles:
        """A token's row in a text longer than the trained length: NTK's base grows with it."""
        config, trained = self._config, self._config.max_position_embeddings
        factor, size = float((config.rotary_scaling or {})["factor"]), config.head_size
        growth = np.float32(factor * length) / np.float32(trained) - np.float32(factor - 1)
        base = np.float32(config.rotary_base) * powers(growth, np.float32(size / (size - 2)))
        inverse = np.float32(1.0) / powers(base, exponents(size))
        return self._angles(np.array([position]), inverse)

    def of(
        self, positions: list[int], lengths: Callable[[], Sequence[int]]
    ) -> tuple[ndarray, ndarray, list[int]]:
        """Cosine and sine [rows, head_size / 2], and each token's row.

        Args:
            lengths: returns the length of each token's text, as `Feed.lengths` does.
        """
        last = max(positions)
        if last >= len(self._cosine):
            rows = np.arange(max(2 * len(self._cosine), last + 256))
            self._cosine, self._sine = self._angles(rows, self._frequencies)
        if self._trained is not None:  # beyond it a row depends on the text's length as well
            known = lengths()
            if max(known) > self._trained:
                return self._of_lengths(positions, known, self._trained)
        return self._cosine, self._sine, positions

    def _of_lengths(
        self, positions: Sequence[int], lengths: Sequence[int], trained: int
    ) -> tuple[ndarray, ndarray, list[int]]:
        keys = list(zip(positions, lengths, strict=True))
        row_of = {key: row for row, key in enumerate(dict.fromkeys(keys))}
        rows = [
            self._beyond(position, length) if length > trained
            else (self._cosine[position : position + 1], self._sine[position : position + 1])
            for position, length in row_of
        ]  # fmt: skip
        cosines, sines = zip(*rows, strict=True)
        return np.concatenate(cosines), np.concatenate(sines), [row_of[key] for key in keys]
