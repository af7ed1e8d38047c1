"""The noise that draws tokens, number by number: as in `native/noise.h`, and no torch."""

from __future__ import annotations

from functools import lru_cache

# The constants of splitmix64, and an odd number for positions.
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
ODD = 0xD1B54A32D192ED03
_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """The noise of one position: 53 bits in [0, 1), from two rounds of the splitmix64 finaliser."""
    return (_mixed(_mixed_seed(seed) + position + GOLDEN) >> 11) * 2.0**-53


@lru_cache(maxsize=1024)
def _mixed_seed(seed: int) -> int:
    return _mixed(seed + GOLDEN)


def _mixed(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * FIRST) & _MASK
    value = ((value ^ (value >> 27)) * SECOND) & _MASK
    return value ^ (value >> 31)
