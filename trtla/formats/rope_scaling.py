"""Rotary scalings: the changes that llama3, yarn and longrope make to the frequencies.

Arithmetic is in the type of the frequencies, float32 in a model. `1 / x * y` stands where `y / x`
would do: it is what PyTorch computes, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Frequencies = NDArray[np.floating[Any]]
"""Inverse frequencies, [head_size / 2]."""


def is_positive(value: object) -> bool:
    """Return True for a number that a scaling may have."""
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < 1e9


def llama3_frequencies(
    inverse: Frequencies, scaling: Mapping[str, Any], trained: int
) -> Frequencies:
    """Rotary frequencies in llama3's scaling: long wavelengths are divided by the factor, short
    ones kept, those between interpolated.

    Args:
        inverse: the frequencies without scaling.
        trained: positions of the training, if the scaling does not have them.
    """
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    length = float(scaling.get("original_max_position_embeddings", trained))
    wavelengths = 1 / inverse * (2 * math.pi)
    smooth = np.clip((1 / wavelengths * length - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * inverse / factor + smooth * inverse


def yarn_frequencies(
    inverse: Frequencies, scaling: Mapping[str, Any], base: float, trained: int
) -> Frequencies:
    """Rotary frequencies in yarn's scaling: low ones, of few turns within the trained length, are
    divided by the factor, high ones kept, those between interpolated by their index.

    Args:
        inverse: the frequencies without scaling.
        trained: positions of the training, if the scaling does not have them.
    """
    size, factor = 2 * len(inverse), float(scaling["factor"])
    length = float(scaling.get("original_max_position_embeddings") or trained)

    def index(turns: float) -> float:
        """The index of the frequency with so many turns."""
        return size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first = index(float(scaling.get("beta_fast") or 32))
    last = index(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    last += 0.001 if first == last else 0
    indices = np.arange(len(inverse), dtype=inverse.dtype)
    share = 1 - np.clip((indices - first) / (last - first), 0, 1)
    divided = 1.0 / (factor * (1.0 / inverse))
    mixed: Frequencies = divided * (1 - share) + inverse * share
    return mixed


_LONG = "long"  # of a scaling: whether texts may be longer than those of the training


def for_texts(scaling: dict[str, Any] | None, longest: int) -> dict[str, Any] | None:
    """A model's scaling for texts of up to `longest` tokens: longrope has two tables of factors.

    Keys rotated by one table do not go with queries rotated by the other. So a model has the table
    of the longest text that it is opened for, as in llama.cpp and vLLM.
    """
    if not scaling or "long_factor" not in scaling:
        return scaling
    return {**scaling, _LONG: longest > scaling["original_max_position_embeddings"]}


def longrope_factors(scaling: Mapping[str, Any]) -> list[float]:
    """The factor of each frequency's wavelength."""
    factors: list[float] = scaling["long_factor" if scaling.get(_LONG) else "short_factor"]
    return factors


def longrope_magnitude(scaling: Mapping[str, Any], positions: int) -> float:
    """Longrope's factor of cosines and sines, for models that do not have it in their config.

    Args:
        positions: of the model.
    """
    trained = scaling["original_max_position_embeddings"]
    factor = scaling.get("factor") or positions / trained
    return math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0


def yarn_magnitude(scaling: Mapping[str, Any]) -> float:
    """Yarn's factor of cosines and sines, which makes attention to longer texts flatter."""
    factor, explicit = float(scaling["factor"]), scaling.get("attention_factor")
    if explicit is not None:
        return float(explicit)

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    scale, all_dims = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return grown(scale) / grown(all_dims) if scale and all_dims else grown(1.0)
