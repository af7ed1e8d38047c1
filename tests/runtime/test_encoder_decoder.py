"""Models of the T5 family: transformers' greedy texts, and the same texts whatever drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.encoder_decoders import KINDS, PROMPTS, folder, greedy_texts
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.llm.answer import Completion
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings
from trtla.settings.sampling import BeamSettings

COUNT, FEW = 24, 12
CHAIN = ("prompt-lookup", "ngram", "lookahead")
NAMES = ("lookahead", "ngram", "prompt-lookup", "draft")


def near(kind: str = "T5") -> str:
    """A draft model that is right often but not always."""
    return str(folder(kind, noise=0.02))


def drafting(name: str, kind: str = "T5", **settings: Any) -> DrafterSettings:
    return DrafterSettings((f"draft:{near(kind)}" if name == "draft" else name,), **settings)


def open_t5(kind: str = "T5", **settings: object) -> LLM:
    llm = LLM(folder(kind), dtype="float32", **settings)  # type: ignore[arg-type]
    llm.end_ids = frozenset()
    return llm


def texts(done: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [completion.output_ids for completion in done]


@pytest.mark.parametrize("kind", KINDS)
def test_plain_decoding_gives_the_texts_of_transformers(kind: str) -> None:
    with open_t5(kind) as llm:
        sampling = SamplingParams(max_output_len=COUNT)
        together = llm.generate(PROMPTS, sampling, drafter=NO_DRAFTER)
        (alone,) = llm.generate(PROMPTS[0], sampling, drafter=NO_DRAFTER)
    assert texts(together) == greedy_texts(kind, COUNT)
    assert alone.output_ids == together[0].output_ids
    assert len(set(texts(together))) == len(PROMPTS), "a text must depend on its prompt"
    assert [c.input_ids for c in together] == list(PROMPTS)


@pytest.mark.deep(first=2)
@pytest.mark.parametrize("heat", [0.0, 0.9])
@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_no_drafter_changes_a_text(heat: float, gamma: int) -> None:
    arms = [*(drafting(name, gamma=gamma) for name in NAMES), DrafterSettings(CHAIN, gamma=gamma)]
    params = [
        SamplingParams(max_output_len=COUNT, temperature=heat, top_k=20, seed=seed)
        for seed in range(len(PROMPTS))
    ]
    with open_t5(draft_models=[near()], lookahead=LookaheadConfig(4, 3, 4)) as llm:
        plain = texts(llm.generate(PROMPTS, params, drafter=NO_DRAFTER))
        for settings in arms:
            drafted = llm.generate(PROMPTS, params, drafter=settings)
            (alone,) = llm.generate(PROMPTS[0], params[0], drafter=settings)
            assert texts(drafted) == plain, settings.name
            assert alone.output_ids == plain[0], settings.name
            assert sum(c.stats.accepted for c in drafted) > 0, settings.name
    assert heat or plain == greedy_texts("T5", COUNT)


@pytest.mark.parametrize("kind", KINDS)
def test_trees_of_a_chain_of_drafters_are_right_for_every_kind(kind: str) -> None:
    chain = DrafterSettings((f"draft:{near(kind)}", *CHAIN), gamma=6, egag=True)
    with open_t5(kind, draft_models=[near(kind)], lookahead=LookaheadConfig(3, 4, 3)) as llm:
        done = llm.generate(PROMPTS, SamplingParams(max_output_len=FEW), drafter=chain)
    assert texts(done) == [text[:FEW] for text in greedy_texts(kind, COUNT)]
    assert sum(c.stats.accepted for c in done) > FEW


def test_what_the_encoder_reads_counts_as_fed() -> None:
    prompt = PROMPTS[0]
    sampling = SamplingParams(max_output_len=COUNT)
    with open_t5() as llm:
        for name in ("none", "prompt-lookup", "ngram"):
            done = llm.generate(prompt, sampling, drafter=DrafterSettings((name,)))[0]
            assert done.stats.fed == len(prompt) + done.stats.steps + (done.stats.drafted or 0)


def test_requests_of_all_drafters_share_their_steps() -> None:
    drafters = [drafting(name) for name in NAMES]
    with open_t5(draft_models=[near()], max_batch_size=3) as llm:
        done = llm.generate(PROMPTS, SamplingParams(max_output_len=COUNT), drafter=drafters)
        assert llm.stats().max_in_flight == 3
        assert llm.stats().prompt_tokens == sum(map(len, PROMPTS))
    assert texts(done) == greedy_texts("T5", COUNT)


@pytest.mark.deep(first=2)
@pytest.mark.parametrize("name", ["none", *reversed(NAMES)])
def test_texts_end_at_their_first_end_token_and_at_their_length(name: str) -> None:
    full = greedy_texts("T5", COUNT)
    places = ((0, 7), (2,), (3, COUNT - 1), (5,))
    ends = dict.fromkeys(text[at] for text, own in zip(full, places, strict=True) for at in own)
    cases: list[tuple[int | None, int]] = [(None, length) for length in (1, 2, 3, 4, 6)]
    with open_t5(draft_models=[near()], lookahead=LookaheadConfig(4, 3, 4)) as llm:
        for end, length in (*cases, *((end, COUNT) for end in ends)):
            llm.end_ids = frozenset() if end is None else frozenset({end})
            sampling = SamplingParams(max_output_len=length)
            done = llm.generate(PROMPTS, sampling, drafter=drafting(name))
            assert texts(done) == [ended(text[:length], end) for text in full]
            assert all(
                c.finish_reason == ("end_id" if end in c.output_ids else "length") for c in done
            )


def ended(text: tuple[int, ...], end: int | None) -> tuple[int, ...]:
    return text if end not in text else text[: text.index(end) + 1]


def test_a_draft_model_that_is_the_target_is_always_right() -> None:
    names = (f"draft:{folder('T5')}",)
    with open_t5(drafter=DrafterSettings(names)) as llm:
        for heat, rejection in ((0.0, False), (0.8, False), (0.8, True)):
            sampling = SamplingParams(max_output_len=COUNT, temperature=heat)
            settings = DrafterSettings(names, rejection=rejection)
            done = llm.generate(PROMPTS, sampling, drafter=settings)
            assert all(c.stats.accepted == c.stats.drafted > 0 for c in done)


def test_auto_feeds_what_pays_and_says_the_same() -> None:
    with open_t5(lookahead="auto") as llm:
        done = llm.generate(PROMPTS, SamplingParams(max_output_len=COUNT))
    assert texts(done) == greedy_texts("T5", COUNT)


def test_one_beam_is_the_greedy_text_with_its_log_probability() -> None:
    with open_t5() as llm:
        for prompt, greedy in zip(PROMPTS, greedy_texts("T5", COUNT), strict=True):
            one = llm.beam_search(prompt, BeamSettings(num_beams=1, expansions=1), COUNT)
            assert [beam.output_ids for beam in one] == [greedy]
            assert one[0].log_prob == pytest.approx(sum(llm.log_probs(prompt, greedy)), abs=1e-3)


def test_bfloat16_weights_decode() -> None:
    sampling = SamplingParams(max_output_len=COUNT)
    with LLM(folder("T5-1.1"), dtype="bfloat16") as llm:
        done = llm.generate(PROMPTS, sampling, drafter=DrafterSettings(("prompt-lookup",)))
        assert llm.description == "torch on cpu, bfloat16, encoder of transformers"
    assert all(0 < len(text) <= COUNT for text in texts(done))
