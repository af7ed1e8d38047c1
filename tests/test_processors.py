"""Named sampling settings: what they stand for, and which are refused."""

from __future__ import annotations

import pytest

from trtla.errors import UsageError
from trtla.settings.sampling import parse_processor


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("greedy", (0.0, 0, 1.0)),
        ("greedy:0.7", (0.0, 0, 1.0)),
        ("multinomial", (1.0, 0, 1.0)),
        ("multinomial:0.5", (0.5, 0, 1.0)),
        ("topk:0.8:40", (0.8, 40, 1.0)),
        ("nucleus:0.8:0.9", (0.8, 0, 0.9)),
        ("topknucleus:1:50:0.95", (1.0, 50, 0.95)),
    ],
)
def test_a_name_stands_for_temperature_top_k_and_top_p(
    text: str, filters: tuple[float, int, float]
) -> None:
    assert parse_processor(text) == filters


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("beam", "beam"),
        ("nucleus", "temperature, top_p"),
        ("nucleus:0.8", "1 values"),
        ("greedy:1:2", "2 values"),
        ("topk:1:2.5", "top_k 2.5"),
        ("topk:1:0", "top_k 0"),
        ("nucleus:0.8:1.5", "top_p is 1.5"),
        ("nucleus:0.8:0", "top_p is 0"),
        ("multinomial:-1", "temperature is -1"),
        ("multinomial:hot", "no number"),
        ("multinomial:nan", "nan"),
        ("topk:1:nan", "nan"),
        ("topk:1:inf", "inf"),
    ],
)
def test_what_is_not_a_processor_is_refused_with_its_value(text: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_processor(text)
    assert part in caught.value.message
    assert text in caught.value.message
    assert caught.value.hint
