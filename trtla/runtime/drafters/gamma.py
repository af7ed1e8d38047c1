"""How many tokens a draft model drafts in a step: always gamma, or by its own entropy (EGAG).

EGAG, adaptive gamma guided by entropy, is the rule of "Speculative-Decoding" (FK fork), as in
docs/algorithm.md.
"""

from __future__ import annotations

import math
from typing import Protocol

from trtla.runtime.stats import GammaChoice
from trtla.settings.drafting import DrafterSettings


class GammaPolicy(Protocol):
    """Chooses gamma once a step; one object serves one request."""

    @property
    def reads_entropy(self) -> bool:
        """Whether `choose` wants the entropy of the first draft's distribution."""

    def choose(self, entropy: float = 0.0) -> GammaChoice:
        """Gamma of the next step; the entropy is in nats."""


class FixedGamma:
    """The same gamma in every step."""

    reads_entropy = False

    def __init__(self, gamma: int) -> None:
        self._choice = GammaChoice(gamma, gamma)

    def choose(self, entropy: float = 0.0) -> GammaChoice:
        """Gamma, whatever the entropy."""
        return self._choice


class EntropyGuidedGamma:
    """EGAG: floor((1 - H / ln V) * gamma_max) within its bounds, then a moving average.

    Args:
        gamma_min: 0 lets a step be plain decoding.
        ema: weight of the past in the average; 0 takes each step's own value.
        vocab_size: V, at least 2.
    """

    reads_entropy = True

    def __init__(self, gamma_min: int, gamma_max: int, ema: float, vocab_size: int) -> None:
        self._bounds, self._ema = (gamma_min, gamma_max), ema
        self._most_entropy = math.log(vocab_size)
        self._average: float | None = None

    def choose(self, entropy: float = 0.0) -> GammaChoice:
        """Gamma for a first draft with this entropy."""
        least, most = self._bounds
        relative = entropy / self._most_entropy
        raw = min(max(math.floor((1 - relative) * most), least), most)
        return GammaChoice(round(self._averaged(raw)), raw, relative)

    def _averaged(self, raw: int) -> float:
        if self._average is None or not self._ema:
            self._average = float(raw)
        else:
            self._average = self._ema * self._average + (1 - self._ema) * raw
        return self._average


def gamma_policy(settings: DrafterSettings, vocab_size: int) -> GammaPolicy:
    """A request's policy, at its start."""
    if not settings.egag:
        return FixedGamma(settings.gamma)
    bounds = settings.gamma_min, settings.largest_gamma
    return EntropyGuidedGamma(*bounds, settings.ema, vocab_size)
