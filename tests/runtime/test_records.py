"""What a decoding hands out: completions, chunks and beams as records, and several texts each."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from trtla import LLM, LookaheadConfig, SamplingParams, TrtlaWarning

PROMPTS = ["def add(a, b):\n    return", "import os\n"]
HOT = SamplingParams(max_tokens=12, temperature=1.0, seed=7)


def test_the_names_of_tokens_are_the_same_on_all_records(llm: LLM) -> None:
    chunks = list(llm.stream(PROMPTS[0], HOT))
    done = chunks[-1].completion
    assert done is not None
    assert done.token_ids == done.output_ids == sum((one.output_ids for one in chunks), ())
    assert done.text == "".join(chunk.text for chunk in chunks)
    (beam, *_) = llm.beam_search(PROMPTS[0], max_output_len=4)
    assert beam.token_ids == beam.output_ids


def test_a_record_is_printed_in_a_line(llm: LLM) -> None:
    chunks = list(llm.stream(PROMPTS[0], SamplingParams(200), logprobs=5))
    done = chunks[-1].completion
    for record in (done, *chunks):
        assert len(repr(record)) < 200
        assert "\n" not in repr(record)
    shown = repr(done)
    assert shown.startswith(f"Completion(index=0, text={done.text[:60]!r}")
    assert f"{len(done.token_ids)} tokens, finish_reason={done.finish_reason!r}" in shown


@pytest.mark.parametrize("triple", [None, LookaheadConfig(1, 1, 0)])
def test_n_texts_are_those_of_n_seeds_in_order(llm: LLM, triple: LookaheadConfig | None) -> None:
    sampling = [
        SamplingParams(max_tokens=12, temperature=1.0, seed=seed, n=n)
        for seed, n in ((3, 3), (2**63 - 1, 2))
    ]
    done = llm.generate(PROMPTS, sampling, triple)
    assert [(one.index, one.choice) for one in done] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    seeds = [(0, 3), (0, 4), (0, 5), (1, 2**63 - 1), (1, 0)]
    for one, (prompt, seed) in zip(done, seeds, strict=True):
        alone = SamplingParams(max_tokens=12, temperature=1.0, seed=seed)
        assert one.text == llm.generate(PROMPTS[prompt], alone)[0].text
    texts = dict.fromkeys([(one.index, one.choice) for one in done], "")
    for chunk in llm.stream(PROMPTS, sampling, triple):
        texts[chunk.index, chunk.choice] += chunk.text
    assert list(texts.values()) == [one.text for one in done]


def test_a_warning_names_the_line_that_asked(llm: LLM) -> None:
    for ask in (llm.generate, lambda *given, **how: list(llm.stream(*given, **how))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ask(PROMPTS[0], HOT, LookaheadConfig(1, 1, 0), expected_output="x")
        (one,) = [w for w in caught if issubclass(w.category, TrtlaWarning)]
        assert one.filename == __file__


def test_tab_completion_shows_the_public_api_alone(llm: LLM) -> None:
    assert {name for name in dir(llm) if not name.startswith("_")} == {
        "beam_search", "chat", "close", "description", "encode", "generate", "limits", "log_probs",
        "lookahead", "save_corpus", "stats", "stream", "tokenizer",
    }  # fmt: skip
    documented = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    assert "`llm.tokenizer`" in documented
