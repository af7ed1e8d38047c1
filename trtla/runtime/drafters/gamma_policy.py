"""How many tokens a draft model drafts in a step: always gamma, or by its own entropy (EGAG).

Plain floats: where the entropy comes from, and what is drafted, it does not know. EGAG, adaptive
gamma guided by entropy, is the rule of "Speculative-Decoding" (FK fork), as in docs/algorithm.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Protocol

from trtla.drafting import DrafterSettings


@dataclass(frozen=True, slots=True)
class GammaChoice:
    """What a policy says for one step."""

    gamma: int
    raw: int
    """Before the moving average."""
    entropy: float | None = None
    """H / ln(vocabulary), in [0, 1] but for rounding; None where the policy does not ask."""


@dataclass(frozen=True, slots=True)
class DraftStep:
    """One step of one request, for reports."""

    choice: GammaChoice
    drafted: int
    """At most the gamma: fewer where the output ends before."""
    accepted: int


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


@dataclass(slots=True)
class DraftTotals:
    """Sums over steps, of one request or of many."""

    forwards: int = 0
    """Of draft models, with logits: those that only catch up with a text do not count."""
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    _gammas: int = 0
    _entropies: float = 0.0
    _with_entropy: int = 0

    def add(self, step: DraftStep) -> None:
        """Count a step."""
        self.steps += 1
        self.drafted += step.drafted
        self.accepted += step.accepted
        self._gammas += step.choice.gamma
        if step.choice.entropy is not None:
            self._entropies += step.choice.entropy
            self._with_entropy += 1

    def since(self, before: DraftTotals) -> DraftTotals:
        """What has been added to an earlier copy of these sums."""
        return DraftTotals(
            *(getattr(self, one.name) - getattr(before, one.name) for one in fields(self))
        )

    @property
    def mean_gamma(self) -> float | None:
        """Mean gamma of the policy; None before the first step."""
        return self._gammas / self.steps if self.steps else None

    @property
    def mean_entropy(self) -> float | None:
        """Mean H / ln V; None where no policy asked for it."""
        return self._entropies / self._with_entropy if self._with_entropy else None
