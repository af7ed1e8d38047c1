"""The cost table: interpolation, and what is refused."""

from __future__ import annotations

import pytest

from trtla.runtime.costs import CostTable

TABLE = CostTable(((1, ((1, 1.0), (2, 2.0), (8, 5.0))), (4, ((4, 4.0), (8, 6.0)))))


@pytest.mark.parametrize(
    ("tokens", "sequences", "seconds"),
    [
        (1, 1, 1.0), (2, 1, 2.0), (5, 1, 3.5),  # on and between points
        (14, 1, 8.0),  # past the end: the last slope
        (6, 4, 5.0), (4, 4, 4.0), (6, 9, 5.0),  # the largest row serves more sequences as well
        (8, 2, 5.0 * 2 / 3 + 6.0 / 3),  # between rows
    ],
)  # fmt: skip
def test_seconds_are_linear_between_points_and_rows(tokens, sequences, seconds):
    assert TABLE.seconds(tokens, sequences) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "rows",
    [
        (), ((1, ()),), ((1, ((1, 0.0),)),), ((1, ((2, 1.0), (1, 2.0))),),
        ((1, ((1, 2.0), (2, 1.0))),), ((2, ((2, 1.0),)), (1, ((1, 1.0),))),
        ((1, ((1, float("nan")),)),), ((1, ((1, 5e-324), (2, 1.0))),), ((1, ((1, 1e-10),)),),
    ],
)  # fmt: skip
def test_tables_out_of_order_are_refused(rows):
    with pytest.raises(ValueError, match=r"order|positive"):
        CostTable(rows)
