"""The n-gram pool against the published vectors of lade and TensorRT-LLM, and against its rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtla.runtime.drafters.lookahead import NgramPool


def ids(text):
    return tuple(ord(c) for c in text)


def texts(values):
    return ["".join(chr(i) for i in value) for value in values]


def test_09_published_vector():
    pool = NgramPool(ngram_size=4, capacity=5)
    pool.insert_text(ids("hello world; hello world. live is life."))
    assert texts(pool.lookup(ord("l"))) == ["lo ", "o w", "d. ", "ive", "ife"]
    for key, value in zip("lvwxy", ("abc", "de1", "234", "5hi", "jkm"), strict=True):
        pool.insert(ord(key), ids(value))
    assert texts(pool.lookup(ord("l"))) == ["o w", "d. ", "ive", "ife", "abc"]
    assert texts(pool.lookup(ord("w"))) == ["orl", "234"]
    for value in ("dog", "cat", "abc"):
        pool.insert(ord("l"), ids(value))
    assert texts(pool.lookup(ord("l"))) == ["ive", "ife", "dog", "cat", "abc"]


@given(
    st.integers(2, 5),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=40),
)
def test_09_rules(ngram_size, capacity, insertions):
    pool, model = NgramPool(ngram_size, capacity), {}
    for key, number in insertions:
        value = (number,) * (ngram_size - 1)
        pool.insert(key, value)
        kept = [v for v in model.get(key, []) if v != value] + [value]
        model[key] = kept[-capacity:] if capacity else []
    for key in range(3):
        assert pool.lookup(key) == model.get(key, [])
    assert len(pool) == sum(map(len, model.values()))


def test_short_texts_hold_no_ngrams():
    pool = NgramPool(4, 3)
    pool.insert_text((1, 2, 3))
    assert len(pool) == 0


def test_capacity_0_and_ngram_1_store_nothing():
    for pool in (NgramPool(4, 0), NgramPool(1, 3)):
        pool.insert_text((1, 2, 3, 4, 5))
        assert len(pool) == 0
