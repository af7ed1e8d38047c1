"""A clock that only decoding moves on, by known costs of steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from trtla.extras.bench.tune import measuring, tuner
from trtla.measuring.arms import EngineArm
from trtla.runtime.costs import CostTable


@dataclass
class Clock:
    """Seconds that decodings took so far."""

    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds


@pytest.fixture
def costing(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], Clock]:
    """Have a step take `base` seconds and `token` for each fed token, for arms and predictions."""
    real = EngineArm.decode

    def install(base: float, token: float) -> Clock:
        clock = Clock()
        table = CostTable.of([(1, base + token), (1000, base + 1000 * token)])

        def decode(self, prompts, sampling):
            run = real(self, prompts, sampling)
            took = base + token * sum(map(len, prompts))
            took += max(run.steps_each) * base + sum(run.fed_each) * token
            clock.seconds += took
            return replace(run, time_s=took)

        monkeypatch.setattr(EngineArm, "decode", decode)
        monkeypatch.setattr(tuner, "_MOST_ROUNDS", 2)
        monkeypatch.setattr(measuring, "executor_costs", lambda *_: table)
        return clock

    return install
