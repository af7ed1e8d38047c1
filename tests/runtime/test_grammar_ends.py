"""A text with a grammar ends by its ids alone, whatever else its grammar was used for."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.served import SHIPPED
from trtla import AsyncLLM, SamplingParams
from trtla.errors import TrtlaError
from trtla.llm import grammar_compiling
from trtla.llm.grammars import GrammarCompiler
from trtla.llm.text import Tokenizer
from trtla.runtime import grammar_lexer
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.grammar import Grammar
from trtla.settings.lookahead import LookaheadConfig

pytest.importorskip("llguidance")

VOCAB, END = 2048, 2
REPEATED = st.builds(
    "({}{{1,{}}}{}){{1,{}}}".format,
    st.sampled_from(["[a-z]", ".", "[ab]", "(a|b|cd)"]),
    st.integers(2, 200),
    st.sampled_from([" ?", "[.,]?", "(.{0,9}[ab])?", "b?"]),
    st.integers(2, 200),
)
NESTED = Grammar.of({"lark": 'start: "(" start ")" | "[" start "]" | "<" start ">" | /[ab]+/'})
GRAMMARS = REPEATED.map(lambda text: Grammar("regex", text)) | st.just(NESTED)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(SHIPPED)


def limited(monkeypatch, step=4000):
    """Set limits that ordinary grammars reach; a step's are above what burns no fuel."""
    fuel = {"STEP_FUEL": step, "LIFE_FUEL": 8 * step, "AMPLE_FUEL": 16 * step}
    for name, value in fuel.items():
        monkeypatch.setattr(grammar_lexer, name, value)
    monkeypatch.setattr(grammar_compiling, "STEP_FUEL", step)
    monkeypatch.setattr(grammar_compiling, "AMPLE_FUEL", 16 * step)
    monkeypatch.setattr(grammar_compiling, "_MOST_STATES", 400)


def drawn(mask, rng):
    """A token of a mask, seldom the end."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB]
    (ids,) = bits.nonzero()
    return int(rng.choice([token for token in ids if token != END] or ids))


def alone(start, rng, length):
    """A text of plain decoding, the masks behind each of its beginnings, and why it ended."""
    state, ids, masks = start(), [], []
    for _ in range(length):
        masks.append(state.follow(ids).mask())
        if not masks[-1].any() or (token := drawn(masks[-1], rng)) == END:
            break
        ids.append(token)
    return ids, masks, state.failure


def drafted(state, rng):
    """Compute masks along a path of drafts."""
    path = ()
    for _ in range(rng.integers(5)):
        mask = state.draft_mask(path) if rng.random() < 0.5 else state.mask(path)
        if mask is None or not mask.any():
            break
        path += (drawn(mask, rng) if rng.random() < 0.9 else int(rng.integers(VOCAB)),)


def disturbed(start, rng, ids, masks):
    """Follow a text, and hold its masks, beside drafts, other texts and after interruptions."""
    state, others, done = start(), [start() for _ in range(3)], 0
    written = {other: [] for other in others}
    while done < len(masks):
        other = others[rng.integers(3)]
        mask = other.follow(written[other]).mask()
        if mask.any() and (token := drawn(mask, rng)) != END:
            written[other].append(token)
        if rng.random() < 0.1:
            state = start()
        drafted(state.follow(ids[:done]), rng)
        accepted = tuple(ids[done : min(done + rng.integers(4), len(masks) - 1)])
        for count in range(len(accepted) + 1):
            assert np.array_equal(state.mask(accepted[:count]), masks[done + count])
        done += len(accepted) + 1
    return state.follow(ids).failure


@settings(max_examples=25)
@given(grammar=GRAMMARS, seed=st.integers(0, 9999))
def test_a_mask_depends_on_the_ids_in_front_of_it_alone(tokenizer, grammar, seed):
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as monkeypatch:
        limited(monkeypatch)
        try:
            text = alone(GrammarCompiler(tokenizer, VOCAB, (END,)).start(grammar), rng, 90)
            start = GrammarCompiler(tokenizer, VOCAB, (END,)).start(grammar)
        except TrtlaError:  # its first mask takes too much already
            return
        ids, masks, failure = text
        assert disturbed(start, rng, ids, masks) == failure


def test_a_mask_is_not_that_of_another_path_as_long(tokenizer):
    start = GrammarCompiler(tokenizer, VOCAB, (END,)).start(NESTED)
    drafted, plain = start(), start()
    for text in ("((a", "[[a", "([a", "<(a"):
        path = tuple(tokenizer.token_id(letter) for letter in text)
        assert np.array_equal(drafted.mask(path), plain.follow(path).mask())
        plain = start()


@pytest.mark.parametrize("seed", [3, 5])
def test_neither_drafts_nor_texts_beside_end_a_text(seed, monkeypatch):
    limited(monkeypatch, 6000)
    params = SamplingParams(
        40, temperature=3.0, seed=seed, grammar={"regex": "([a-z]{1,100} ?){1,100}"}
    )
    (wanted,) = ends([params], drafter=DrafterSettings(("none",)))
    ways = [
        {"drafter": DrafterSettings(("none",))},
        {"draft_options": DraftOptions(nodes=64)},
        {"drafter": DrafterSettings(("ngram", "prompt-lookup"), gamma=16, stop_if_unknown=False)},
        {"drafter": DrafterSettings(("lookahead",)), "lookahead": LookaheadConfig(4, 3, 4)},
    ]
    crowd = [replace(params, seed=other) for other in (1, 4, seed, 8)]
    for how in ways:
        alone, *beside = ends([params], crowd, **how)
        assert alone == wanted
        assert beside[2] == wanted


def ends(*batches, **how):
    """How texts end that one model decodes, batch after batch."""

    async def decode():
        async with AsyncLLM(SHIPPED, dtype="float32", max_batch_size=4, **how) as llm:
            done = []
            for batch in batches:
                calls = (llm.generate("Once upon a time", params) for params in batch)
                done += await asyncio.gather(*calls, return_exceptions=True)
        return done

    done = asyncio.run(decode())
    return [one.message if isinstance(one, TrtlaError) else one[0].token_ids for one in done]
