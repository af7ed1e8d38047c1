"""Models opened to be measured: second turns, arms on one model, and what a journal goes by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chat_templates import expected_ids
from tests.support.gguf_models import scored, write_gguf
from tests.support.models import VARIANTS, Variant, make_model
from trtla import LLM, SamplingParams
from trtla.data.prompt_sets import Question
from trtla.extras.bench.keys import engine_facts
from trtla.extras.bench.opened import QuestionEncoder, plain_answers
from trtla.extras.bench.rounds import rounds_of
from trtla.extras.bench.ways import PLAIN, Way
from trtla.formats.engine import engine_from_hugging_face
from trtla.formats.gguf.folder import model_folder
from trtla.measuring.arms import AR
from trtla.measuring.turns import measure
from trtla.results.rows import Cell
from trtla.settings.drafting import DraftOptions
from trtla.settings.messages import Asking

FEW = SamplingParams(max_output_len=6)
GQA = next(one for one in VARIANTS if one.name == "gqa")


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(tiny_llama, dtype="float32") as opened:
        yield opened


@pytest.fixture(scope="module")
def drafting_llm(tiny_llama: Path) -> Iterator[LLM]:
    options = DraftOptions(nodes=4, sources=("requests",))
    with LLM(tiny_llama, lookahead="auto", dtype="float32", draft_options=options) as opened:
        opened.end_ids = frozenset()
        yield opened


@pytest.mark.parametrize("chat", [None, False])
def test_a_second_turn_holds_the_first_answer(
    llm: LLM, tiny_llama: Path, chat: bool | None
) -> None:
    tokenizer = llm.tokenizer
    assert tokenizer is not None
    sampling = SamplingParams(max_output_len=8, temperature=0.8, seed=5)
    encoder = QuestionEncoder(tokenizer, Asking(chat))
    answer = plain_answers(llm, tokenizer, sampling, llm.end_ids)
    questions = [Question(("a",)), Question(("class A:", "def b("), is_chat=True)]
    alone, first, second = encoder.questions(questions, answer)
    assert alone == tokenizer.encode("a")
    place = SamplingParams(max_output_len=8, temperature=0.8, seed=6)
    (done,) = llm.generate([first], place)
    if chat is False:
        assert first == tokenizer.encode("class A:")
        assert second == tokenizer.encode(f"class A:{done.text}\ndef b(")
        return
    asked = [{"role": "user", "content": "class A:"}]
    assert first == expected_ids(tiny_llama, asked)
    asked += [{"role": "assistant", "content": str(done.text)}]
    asked += [{"role": "user", "content": "def b("}]
    assert second == expected_ids(tiny_llama, asked)


def test_an_answer_ends_where_its_end_token_is(llm: LLM) -> None:
    tokenizer = llm.tokenizer
    assert tokenizer is not None
    prompt = tokenizer.encode("import ")
    (done,) = llm.generate([prompt], FEW)
    ends = frozenset({done.output_ids[3]})
    (text,) = plain_answers(llm, tokenizer, FEW, ends)([prompt], [0])
    stop = done.output_ids.index(done.output_ids[3])
    assert text == tokenizer.decode(done.output_ids[:stop])


def test_measurements_of_other_weights_are_not_kept(tmp_path: Path) -> None:
    file = write_gguf(make_model(GQA), tmp_path / "model.gguf")
    before = engine_facts(engine_from_hugging_face(model_folder(file)))
    assert engine_facts(engine_from_hugging_face(model_folder(file))) == before
    write_gguf(make_model(GQA, seed=1), file)
    assert engine_facts(engine_from_hugging_face(model_folder(file))) != before


def test_an_answer_that_a_turn_continues_keeps_its_space(tmp_path: Path) -> None:
    tokenizer = scored()
    model = make_model(Variant("scored", {"vocab_size": len(tokenizer["tokens"])}))
    file = write_gguf(model, tmp_path / "model.gguf", tokenizer=tokenizer)
    sampling = SamplingParams(max_output_len=3)
    with LLM(file, dtype="float32") as llm:
        assert llm.tokenizer is not None
        prompts = [(1, 260 + token % 19, token) for token in range(100)]
        done = llm.generate(prompts, sampling)
        answers = plain_answers(llm, llm.tokenizer, sampling, frozenset())(prompts, [0] * 100)
    assert answers == [one.text for one in done]
    assert any(answer.startswith(" ") for answer in answers)


def test_rounds_and_arms_of_bench_do_not_profit_from_earlier_ones(drafting_llm):
    llm = drafting_llm
    prompt, sampling = tuple(llm.encode("def read(path):\n    ")), SamplingParams(24)
    cell = Cell(
        device="cpu", dtype="float32", threads=1, batch_size=1, temperature=0.0, category="code"
    )
    arms = [way.arm(llm) for way in (PLAIN, Way("", "auto"), Way("auto again", "auto"))]
    measured = measure(cell, arms, rounds_of([[prompt]], sampling, 2))
    accepted = {name: [one.accepted for one in runs] for name, runs in measured.runs().items()}
    assert accepted == {AR: [0, 0], "lookahead auto": [0, 0], "auto again": [0, 0]}
    within = measure(cell, arms[:2], rounds_of([[prompt], [prompt]], sampling, 1))
    assert within.runs()["lookahead auto"][0].accepted > 0  # its own earlier batch of the round
