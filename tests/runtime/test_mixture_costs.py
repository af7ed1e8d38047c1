"""First prices of steps of a mixture of experts, whose tokens read experts of their own."""

from __future__ import annotations

import pytest

from trtla.runtime.auto.shipped import shipped_costs
from trtla.runtime.costs import Mixture
from trtla.runtime.device import CPU


@pytest.mark.parametrize(("tokens", "experts"), [(1, 8), (2, 15.5), (4, 29.11), (8, 51.61)])
def test_tokens_read_as_many_weights_as_independent_choices_use(
    tokens: int, experts: float
) -> None:
    assert Mixture(1.0, 128, 8).growth(tokens) == pytest.approx(experts / 8, abs=2e-3)
    assert Mixture(0.5, 128, 8).growth(tokens) == pytest.approx(0.5 + experts / 16, abs=2e-3)


def test_a_few_tokens_of_a_mixture_are_dear_and_many_are_not() -> None:
    """The price of a token falls with their number: experts are shared."""
    mixture = Mixture(0.8, 32, 4)
    table = shipped_costs(10**9, "Q4_0", CPU, True, mixture)
    dense = shipped_costs(10**9, "Q4_0", CPU, True)
    assert table.seconds(1) == dense.seconds(1)
    assert table.seconds(2) > 1.5 * dense.seconds(2)
    assert table.seconds(4) - table.seconds(2) < 2 * (table.seconds(2) - table.seconds(1))
