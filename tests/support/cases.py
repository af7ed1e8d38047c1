"""Rules, prompts and triples for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.toys import hash_rule

triples = st.tuples(st.integers(1, 8), st.integers(2, 7), st.integers(0, 8))
vocabs = st.sampled_from([2, 3, 5, 11])


@st.composite
def cases(draw):
    vocab = draw(vocabs)
    prompt = draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=12))
    rule = hash_rule(vocab, draw(st.integers(1, 6)), draw(st.integers(0, 10**6)))
    return rule, vocab, prompt, draw(triples), draw(st.integers(1, 40)), draw(st.integers(0, 99))


def steps_of(outputs):
    return outputs[-1].stats.step_lengths
