"""The triple: published values of max_draft_len, legality, parsing and the order of limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtla.errors import UsageError
from trtla.settings.lookahead import (
    LookaheadConfig,
    check_default,
    check_request,
    max_draft_len,
    triples_for,
)

PUBLISHED = {
    (1, 1, 0): 0,
    (1, 2, 0): 0,
    (2, 2, 0): 1,
    (2, 2, 1): 2,
    (3, 3, 3): 11,
    (4, 3, 4): 15,
    (4, 4, 4): 23,
    (3, 5, 7): 39,
    (5, 5, 5): 39,
    (5, 4, 2): 20,
    (7, 7, 7): 83,
    (7, 5, 3): 39,
    (8, 8, 4): 83,
    (8, 6, 8): 79,
    (8, 8, 8): 111,
    (15, 5, 15): 119,
}
legal = st.tuples(st.integers(1, 40), st.integers(2, 40), st.integers(0, 40))


@pytest.mark.parametrize("triple", PUBLISHED)
def test_published_values(triple):
    assert max_draft_len(*triple) == PUBLISHED[triple]
    assert LookaheadConfig(*triple).max_decoding_tokens == PUBLISHED[triple] + 1


@given(legal)
def test_budget_is_the_closed_form(triple):
    w, n, g = triple
    assert max_draft_len(*triple) == (n - 1) * (w + g) - 1


@given(legal, legal)
def test_a_request_that_fits_needs_no_more_drafts(one, other):
    request, server = LookaheadConfig(*one), LookaheadConfig(*other)
    if request.fits(server):
        assert request.max_draft_len <= server.max_draft_len
        check_request(request, server, "request 0")
    else:
        with pytest.raises(UsageError, match="request 0 asks for lookahead"):
            check_request(request, server, "request 0")


@pytest.mark.parametrize("text", ["7,5,3", "[7,5,3]", "(7, 5, 3)", " 7 , 5 , 3 "])
def test_spellings(text):
    assert LookaheadConfig.parse(text) == LookaheadConfig(7, 5, 3)
    assert LookaheadConfig.parse([7, 5, 3]) == LookaheadConfig(7, 5, 3)


@pytest.mark.parametrize(
    "text", ["", "7", "7,7", "7,7,7,7", "a,b,c", "7;7;7", "7.0,7,7", "[7,7,7", "7,7,7]", "7,,7"]
)
def test_malformed_triples_are_quoted(text):
    with pytest.raises(UsageError, match="not a triple") as raised:
        LookaheadConfig.parse(text)
    assert repr(text) in raised.value.message
    assert "7,7,7" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("triple", "named"),
    [
        ((0, 7, 7), "window=0"),
        ((7, 0, 7), "ngram=0"),
        ((7, 7, -1), "verification=-1"),
        ((2, 1, 0), "ngram=1 allows only"),
        ((1, 1, 1), "ngram=1 allows only"),
        ((7, 7, 10**9), "1000000000"),
        ((7, 7.5, 7), "whole numbers"),
        ((True, 7, 7), "whole numbers"),
    ],
)
def test_illegal_triples_name_the_value(triple, named):
    with pytest.raises(UsageError, match=named):
        LookaheadConfig(*triple)


def test_the_server_needs_exactly_the_engines_draft_len():
    check_default(LookaheadConfig(7, 7, 7), 83, "engine")
    check_default(LookaheadConfig(8, 8, 4), 83, "engine")
    for triple in ((8, 7, 7), (4, 4, 4), (1, 1, 0)):
        with pytest.raises(UsageError, match="built with max_draft_len 83"):
            check_default(LookaheadConfig(*triple), 83, "engine")


@given(st.integers(0, 3000))
def test_triples_for_a_draft_len_need_exactly_it(draft_len):
    triples = triples_for(draft_len)
    assert triples
    assert len(set(triples)) == len(triples)
    assert {triple.max_draft_len for triple in triples} == {draft_len}
    even = [triple.window_size == triple.verification_set_size for triple in triples]
    assert even == sorted(even, reverse=True)


@given(legal)
def test_every_n_gram_has_a_triple(triple):
    w, n, g = triple
    if w + g >= 2:
        assert n in {t.ngram_size for t in triples_for(max_draft_len(w, n, g))}


@pytest.mark.parametrize(
    ("draft_len", "first"),
    [
        (83, (7, 7, 7)),
        (39, (5, 5, 5)),
        (15, (4, 3, 4)),
        (23, (4, 4, 4)),
        (111, (8, 8, 8)),
        (2, (2, 2, 1)),
        (0, (1, 1, 0)),
    ],
)
def test_the_most_useful_triple_comes_first(draft_len, first):
    assert triples_for(draft_len)[0].as_tuple() == first


def test_no_triple_has_fewer_drafts_than_none():
    with pytest.raises(UsageError, match="max_draft_len -1 is below 0"):
        triples_for(-1)
