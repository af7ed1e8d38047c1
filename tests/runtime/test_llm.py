"""`LLM` on the shipped model: prompts, streams, stop strings, settings and errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trtla import LLM, LookaheadConfig, SamplingParams, UsageError
from trtla.errors import TrtlaError

PROMPTS = ["def read(path):\n    ", "class Queue:\n    def ", "import os\n"]
PLAIN = LookaheadConfig(1, 1, 0)


@pytest.fixture(scope="module")
def long_text(llm):
    """A sampled text with some variety, and its settings."""
    params = SamplingParams(max_output_len=64, temperature=0.8, seed=4)
    (completion,) = llm.generate(PROMPTS[0], params, PLAIN)
    return completion, params


def test_a_traceback_ends_with_the_hint(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        LLM(tmp_path / "absent")
    assert str(refusal.value) == f"{tmp_path}/absent does not exist\nhint: check the path"
    assert str(TrtlaError("no hint")) == "no hint"


def test_a_hugging_face_folder_serves_7_7_7_by_default(llm):
    assert llm.limits.lookahead == LookaheadConfig(7, 7, 7)


def test_one_prompt_or_several(llm):
    params = SamplingParams(max_output_len=8)
    one, several = llm.generate(PROMPTS[0], params), llm.generate(PROMPTS, params)
    assert [c.index for c in several] == [0, 1, 2]
    assert one[0].output_ids == several[0].output_ids
    ids = llm.tokenizer.encode(PROMPTS[0])
    assert llm.generate(ids, params)[0].output_ids == one[0].output_ids
    assert llm.generate([ids], params)[0].input_text == PROMPTS[0]


@pytest.mark.parametrize("triple", [(7, 7, 7), (3, 4, 2), (1, 1, 0)])
def test_chunks_concatenate_to_the_completion(llm, long_text, triple):
    expected, params = long_text
    chunks = list(llm.stream([PROMPTS[0]] * 2, params, LookaheadConfig(*triple)))
    for index in range(2):
        own = [c for c in chunks if c.index == index]
        assert [c.completion is not None for c in own] == [False] * (len(own) - 1) + [True]
        done = own[-1].completion
        assert "".join(c.text for c in own) == done.text == expected.text
        assert tuple(t for c in own for t in c.token_ids) == done.output_ids
        assert sum(c.accepted for c in own) == done.stats.accepted


@pytest.mark.parametrize("triple", [(7, 7, 7), (1, 1, 0)])
def test_14_stop_strings_cut_like_plain_decoding(llm, long_text, triple):
    full, params = long_text
    middle = full.text[len(full.text) // 2 :][:3]
    stopping = SamplingParams(
        params.max_output_len, params.temperature, seed=params.seed, stop=(middle,)
    )
    (cut,) = llm.generate(PROMPTS[0], stopping, LookaheadConfig(*triple))
    assert cut.finish_reason == "stop_words"
    assert cut.text == full.text[: full.text.index(middle)]
    assert cut.output_ids == full.output_ids[: len(cut.output_ids)]
    assert middle in llm.tokenizer.decode(cut.output_ids)


def test_13_end_ids_stay_in_the_ids_and_out_of_the_text(llm, long_text):
    full, params = long_text
    place = 20
    token = full.output_ids[place]
    first = full.output_ids.index(token)
    before, llm.end_ids = llm.end_ids, frozenset({token, 999_999})
    try:
        (cut,) = llm.generate(PROMPTS[0], params)
    finally:
        llm.end_ids = before
    assert cut.finish_reason == "end_id"
    assert cut.output_ids == full.output_ids[: first + 1]
    assert cut.text == llm.tokenizer.decode(full.output_ids[:first])


def test_pieces_mark_accepted_tokens(llm):
    params = SamplingParams(max_output_len=40)
    (done,) = llm.generate(PROMPTS[1], params, LookaheadConfig(3, 3, 3))
    pieces = done.pieces
    assert "".join(piece for piece, _ in pieces) == done.text
    assert any(accepted for _, accepted in pieces)
    assert any(accepted for _, accepted in pieces) == (done.stats.accepted > 0)
    (plain,) = llm.generate(PROMPTS[1], params, PLAIN)
    assert not any(accepted for _, accepted in plain.pieces)


def test_settings_one_each(llm):
    lengths = (3, 5, 7)
    done = llm.generate(
        PROMPTS, [SamplingParams(max_output_len=n) for n in lengths], [PLAIN, None, PLAIN]
    )
    assert tuple(len(c.output_ids) for c in done) == lengths
    assert [c.lookahead for c in done] == [PLAIN, LookaheadConfig(7, 7, 7), PLAIN]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PROMPTS, [SamplingParams()] * 2), "2 sampling settings for 3 prompts"),
        ((PROMPTS[0], None, LookaheadConfig(9, 7, 7)), "prompt 0 asks for lookahead 9,7,7"),
        (([10**6],), "token id 1000000"),
        ((PROMPTS[0], SamplingParams(max_output_len=10**6)), "above max_seq_len"),
    ],
)
def test_bad_requests_are_named_before_anything_runs(llm, arguments, message):
    steps = llm.stats().steps
    with pytest.raises(UsageError, match=message) as raised:
        llm.generate(*arguments)
    assert raised.value.hint
    assert llm.stats().steps == steps


def test_one_bad_prompt_stops_the_whole_call(llm):
    steps = llm.stats().steps
    with pytest.raises(UsageError, match="the second"):
        llm.generate(["good", ""], names=["the first", "the second"])
    assert llm.stats().steps == steps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device 'tpu' is not known"),
        ({"device": "cuda:77"}, "device 'cuda:77' (is not available|needs torch)"),
        ({"dtype": "int4"}, "dtype 'int4' is not known"),
        ({"dtype": "fp16"}, "hint: did you mean float16. use auto"),
        ({"max_batch_size": 1000}, "max_batch_size 1000 is above"),
        ({"tokenizer_dir": "nowhere"}, "tokenizer in nowhere cannot be loaded"),
    ],
)
def test_bad_settings_are_named(tiny_llama, options, message):
    with pytest.raises(UsageError, match=message):
        LLM(tiny_llama, **options)


def test_without_tokenizer_files_ids_go_in_and_out(tiny_llama, tmp_path, llm):
    folder = tmp_path / "bare"
    shutil.copytree(tiny_llama, folder, ignore=shutil.ignore_patterns("token*", "special*"))
    ids = llm.tokenizer.encode(PROMPTS[0])
    with LLM(folder, dtype="float32") as bare:
        (done,) = bare.generate([ids], SamplingParams(max_output_len=12))
        assert (done.text, done.input_text) == ("", None)
        assert done.output_ids == llm.generate(ids, SamplingParams(max_output_len=12))[0].output_ids
        assert done.pieces == ()
        chunks = list(bare.stream([ids], SamplingParams(max_output_len=12)))
        assert [chunk.text for chunk in chunks] == [""] * len(chunks)
        assert bare.beam_search(ids, max_output_len=4)[0].text == ""
        with pytest.raises(UsageError, match="no tokenizer files"):
            bare.generate("text")
        with pytest.raises(UsageError, match="stop string"):
            bare.generate([ids], SamplingParams(stop=("x",)))
