"""Every drafter, alone and in chains, in one batch with the others: each text is plain decoding's.

The invariants are those of the table in docs/algorithm.md: I1, I2, I5 to I8.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trtla
from tests.support.examples import examples
from tests.support.mixed import (
    VOCAB,
    batches,
    check_counters,
    drafters,
    mixed_executor,
    plain_texts,
)
from tests.support.toys import request, run, tokens_of
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.errors import UsageError
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings, DraftOptions
from trtla.settings.lookahead import AUTOREGRESSIVE

SHIPPED = Path(trtla.__file__).parent / "assets" / "tiny-llama"


@given(batches, st.integers(0, 2), st.integers(1, 4), st.booleans(), st.booleans())
@examples(40)
def test_mixed_batches_say_what_plain_decoding_says(asked, salt, batch, reference, ahead) -> None:
    options = DraftOptions(reference=reference)
    executor, _, group = mixed_executor(
        LookaheadConfig(4, 4, 3), draft_salt=salt, batch=batch, options=options, ahead=ahead
    )
    outputs = run(executor, asked)
    assert {key: tokens_of(value) for key, value in outputs.items()} == plain_texts(asked)
    for one in asked:
        check_counters(one, outputs[one.request_id][-1].stats, outputs[one.request_id])
    assert group.cache.pool.num_free == group.cache.pool.num_blocks


@given(st.lists(drafters(), min_size=2, max_size=4), st.integers(0, 9))
@examples(25)
def test_the_drafter_of_a_request_changes_its_speed_alone(many, seed) -> None:
    prompt = [1, 2, 3, 1, 2, 3, 1]
    texts = []
    for drafter in many:
        executor, _, _ = mixed_executor(LookaheadConfig(3, 3, 2))
        asked = request(prompt, 20, drafter=drafter, temperature=1.0, seed=seed)
        texts.append(tokens_of(run(executor, [asked])[0]))
    assert all(one == other for one, other in pairwise(texts))


def test_a_step_feeds_no_more_than_the_settings_allow() -> None:
    triple = LookaheadConfig(3, 3, 2)
    for names in (("ngram",), ("ngram", "prompt-lookup"), ("prompt-lookup", "lookahead", "ngram")):
        drafter = DrafterSettings(names, gamma=3, stop_if_unknown=False)
        executor, target, _ = mixed_executor(triple)
        run(executor, [request([1, 2, 1, 2, 1], 30, drafter=drafter)])
        assert max(target.fed[1:]) <= 1 + drafter.max_draft_len(triple)
        assert max(target.fed[1:]) > 1


def test_a_chain_accepts_what_its_drafters_know_and_beats_none_of_them_in_steps() -> None:
    """An equal draft model is always right, so the chain takes gamma + 1 tokens a step."""
    executor, _, _ = mixed_executor(LookaheadConfig(3, 3, 2))
    drafter = DrafterSettings(("draft:toy", "lookahead", "ngram"), gamma=3)
    stats = run(executor, [request([1, 2], 21, drafter=drafter)])[0][-1].stats
    assert stats.accepted == 15
    assert stats.steps == 5
    assert stats.drafter == "draft:toy,lookahead,ngram"


@pytest.mark.parametrize("names", [("ngram", "draft:toy"), ("draft:toy", "ngram")])
def test_a_draft_model_makes_no_forward_where_others_have_proposed_enough(names) -> None:
    """The text says 1 2 3 4 again and again, then something else for a while, then that again."""

    def scores(text):
        strange = 30 <= len(text) < 42
        wanted = len(text) ** 2 % 6 if strange else 1 + len(text) % 4
        return [40.0 * (token == wanted) for token in range(VOCAB)]

    gamma, prompt = 3, [1 + place % 4 for place in range(1, 12)]
    chosen = DrafterSettings(names, gamma=gamma, top_k_filler=1)
    executor, _, group = mixed_executor(AUTOREGRESSIVE, scores=scores)
    outputs = run(executor, [request(prompt, 60, drafter=chosen)])[0]
    text = list(prompt)
    for _ in range(60):
        row = scores(text)
        text.append(row.index(max(row)))
    assert tokens_of(outputs) == text[len(prompt) :]
    steps = outputs[-1].stats.steps
    drafted = group.totals.steps
    assert (drafted > 0.8 * steps) if names[0] == "draft:toy" else (0 < drafted < steps - 5)
    assert group.totals.forwards <= gamma * drafted
    assert group.cache.pool.num_free == group.cache.pool.num_blocks


def test_a_request_may_not_draft_more_than_the_executor_has_room_for() -> None:
    executor, _, _ = mixed_executor(AUTOREGRESSIVE)
    with pytest.raises(UsageError, match="request 0 drafts 40 tokens, above 16"):
        executor.submit(request([1], 4, drafter=DrafterSettings(("ngram",), gamma=40)))
    with pytest.raises(UsageError, match="draft model other, which is not loaded"):
        executor.submit(request([1], 4, drafter=DrafterSettings(("draft:other",))))


def test_counts_of_earlier_requests_are_kept_when_asked() -> None:
    kept = DrafterSettings(("ngram",), reset_in_between=False, top_k_filler=1)
    text, taught = [3, 1, 4, 1, 5, 2, 0], []
    for settings_ in (kept, replace(kept, reset_in_between=True)):
        executor, _, _ = mixed_executor(AUTOREGRESSIVE)
        first = run(executor, [request(text, 20, drafter=settings_)])[0]
        again = run(executor, [request(text, 20, request_id=1, drafter=settings_)])[1]
        assert tokens_of(first) == tokens_of(again)
        taught.append(again[-1].stats.accepted - first[-1].stats.accepted)
    assert taught[0] > 0 == taught[1]


EVERY = [
    ("none",), ("lookahead",), ("ngram",), ("prompt-lookup",), (f"draft:{SHIPPED}",),
    ("ngram", "lookahead"), (f"draft:{SHIPPED}", "lookahead", "ngram", "prompt-lookup"),
]  # fmt: skip


@pytest.mark.deep(first=2)
@pytest.mark.parametrize("triple", ["3,3,3", "1,1,0"])
@pytest.mark.parametrize("compiled", ["1", "0"])
def test_the_real_model_says_the_same_with_every_drafter_in_one_batch(
    monkeypatch, compiled, triple
) -> None:
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    prompts = [
        "def read(path):\n    with open(path",
        "Once upon a time there was",
        "1, 2, 3, 1, 2,",
    ]
    with LLM(
        SHIPPED, lookahead=LookaheadConfig.parse(triple), dtype="float32", max_batch_size=4,
        draft_models=[str(SHIPPED)],
    ) as llm:  # fmt: skip
        llm.end_ids = frozenset()
        for heat in (0.0, 0.8):
            given = [
                SamplingParams(max_output_len=24, temperature=heat, top_p=0.9, seed=i)
                for i in range(len(prompts))
            ]
            expected = [c.output_ids for c in llm.generate(prompts, given, drafter=NO_DRAFTER)]
            wide = [DrafterSettings(names, gamma=5) for names in EVERY for _ in prompts]
            found = llm.generate(prompts * len(EVERY), given * len(EVERY), drafter=wide)
            assert [c.output_ids for c in found] == expected * len(EVERY)
            by_name = {c.stats.drafter: c.stats for c in found}
            assert by_name["none"].drafted == 0
            assert by_name[f"draft:{SHIPPED}"].tokens_per_step > 3
