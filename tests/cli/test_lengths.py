"""How long texts may be: of models, engines, and what memory has room for; what errors say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command import needs, refused, there, trtla
from trtla import LLM, SamplingParams, TrtlaError, UsageError
from trtla.api.generation import answers_to
from trtla.api.protocol import ChatBody
from trtla.errors import PromptTooLong
from trtla.llm.prompt import PromptRequest
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models import kv_cache

LONG = 5000


@pytest.fixture(scope="session")
def long_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, trained for texts of 5,000 tokens, with a chat template."""
    folder = tmp_path_factory.mktemp("long") / "model"
    shutil.copytree(model, folder)
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    edit(folder / "config.json", max_position_embeddings=LONG)
    edit(folder / "tokenizer_config.json", chat_template=template)
    return folder


def edit(path: Path, **keys: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file with a prompt of 3,000 tokens."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"input_ids": [11, 12, 13, 14, 15, 16] * 500}))
    return path


def test_a_folder_takes_texts_as_long_as_the_model_was_trained_for(
    long_model: Path, prompts: Path
) -> None:
    ask = ("run", long_model, "--input-file", prompts, "-n", "24", "--json")
    drafted, plain = trtla(*ask), trtla(*ask, "--no-lookahead")
    texts = [ran.json["results"][0]["output_ids"] for ran in (drafted, plain)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 24
    assert drafted.json["results"][0]["accepted"] > 0


@needs("inspect")
def test_the_limit_is_shown_before_a_model_is_opened(long_model: Path, engine: Path) -> None:
    found = trtla("inspect", long_model, "--json").json
    assert found["max_text_len"] == LONG
    assert found["kv_cache_bytes"] == LONG * 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads
    assert trtla("inspect", engine, "--json").json["max_text_len"] == 256


@pytest.mark.parametrize(
    ("length", "flags", "parts"),
    [
        (5001, [], ("above max_seq_len 5000", "use a model that was trained for longer texts")),
        (41, ["-c", "40"], ("above max_seq_len 40", "a larger --max-seq-len, at most 5000")),
    ],
)
def test_a_prompt_too_long_for_a_folder_names_what_helps(
    long_model: Path, tmp_path: Path, length: int, flags: list[str], parts: tuple[str, str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"input_ids": [7] * length}))
    refused(trtla("run", long_model, "--input-file", path, *flags), 2, *parts)


def test_a_prompt_too_long_for_an_engine_names_what_helps(engine: Path) -> None:
    def run(*args: str) -> object:
        return trtla("run", engine, "-p", "a" * 300, *args)

    refused(run(), 2, "above max_input_len 128", "build an engine with a larger --max-input-len")
    shorter = ("above max_seq_len 100", "open the model with a larger --max-seq-len, at most 256")
    refused(run("--max-seq-len", "100"), 2, *shorter)
    asked = trtla("run", engine, "-p", "a" * 90, "-n", "20", "-c", "100")
    refused(asked, 2, "= 110, above max_seq_len 100", "larger --max-seq-len, at most 256")
    asked = trtla("run", engine, "-p", "a" * 90, "-n", "300")
    refused(asked, 2, "above max_seq_len 256", "build an engine with a larger --max-seq-len")


@pytest.mark.parametrize("command", there("run", "chat", "explain", "bench", "batch", "serve"))
def test_no_more_is_taken_than_an_engine_was_built_for(engine: Path, command: str) -> None:
    more = {
        "run": ("-p", "a"),
        "explain": ("-p", "a"),
        "batch": (engine / "config.json", "-o", "out"),
    }
    ran = trtla(command, "-m", engine, *more.get(command, ()), "-c", "257")
    refused(ran, 2, "max_seq_len 257 is above the 256 that", "build an engine with a larger")


def test_no_more_is_taken_than_a_model_was_trained_for(model: Path) -> None:
    ran = trtla("run", model, "-p", "a", "-c", "513")
    refused(ran, 2, "max_seq_len 513 is above the 512 positions", "use --max-seq-len 512 or less")
    refused(trtla("run", model, "-p", "a", "-c", "1"), 2, "max_seq_len is 1", "at least 2")


@needs("chat")
def test_a_conversation_has_the_models_own_length(long_model: Path) -> None:
    ran = trtla("chat", long_model, "-n", "4", "--no-chat", stdin=f"{'a' * 3000}\nb\n/stats\n")
    assert ran.code == 0
    assert "context" not in ran.err, ran.err
    short = trtla("chat", long_model, "-n", "4", "--no-chat", "-c", "64", stdin=f"{'a' * 100}\n")
    assert "above max_seq_len 64" in short.err
    assert "--max-seq-len, at most 5000" in short.err


@pytest.mark.parametrize(("batch_size", "tokens"), [(1, LONG), (2, LONG), (8, 8 * 2048)])
def test_a_full_batch_of_usual_texts_has_blocks_and_one_of_full_length(
    long_model: Path, batch_size: int, tokens: int
) -> None:
    with LLM(long_model, max_batch_size=batch_size) as llm:
        blocks = llm._executor._cache.pool.num_blocks
        drafts = 83 * (1 if tokens == LONG else batch_size)
        whole = -(-(tokens + drafts) // TOKENS_PER_BLOCK)
        assert whole <= blocks <= whole + batch_size
        assert llm.limits.max_text_len == llm.limits.max_input_len == LONG
        assert llm.limits.usual_output_len == max(2048, LONG // batch_size)


@pytest.mark.parametrize(("batch_size", "most"), [(1, LONG - 5), (2, 2500), (8, 2048)])
def test_an_answer_that_names_no_length_leaves_room_for_a_full_batch(
    long_model: Path, batch_size: int, most: int
) -> None:
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "Hello"}]})
    with LLM(long_model, max_batch_size=batch_size) as llm:
        (answer,) = answers_to(body, llm)
        assert answer.request.sampling.max_output_len == most
        prompt = PromptRequest("it", [{"role": "user", "content": "Hello"}], SamplingParams())
        assert llm.request(prompt).sampling.max_output_len == most  # LLM and run as the server
        body = body.model_copy(update={"max_tokens": 4000})
        (answer,) = answers_to(body, llm)
        assert answer.request.sampling.max_output_len == 4000


def test_memory_shortens_texts_and_says_so(
    long_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = 2 * 2 * 2 * 16 * 4
    monkeypatch.setattr(kv_cache, "_free_bytes", lambda device: 3000 * token)
    with LLM(long_model, dtype="float32") as llm:
        fit = llm.limits.max_text_len
        assert 3000 - 83 - 2 * TOKENS_PER_BLOCK < fit <= 3000 - 83
        note = f"texts have at most {fit} of the model's {LONG} tokens: cpu has 0.0 GiB for keys"
        assert llm.limits.length_note.startswith(note)
        assert note in caplog.text
        with pytest.raises(PromptTooLong, match=r"cpu has 0\.0 GiB .* at 0\.5 KiB a token"):
            llm.generate([[7] * (fit + 1)])
        assert len(llm.generate([[7] * (fit - 8)])[0].output_ids) == 8
    with pytest.raises(TrtlaError, match="open the model with a smaller max_seq_len"):
        LLM(long_model, dtype="float32", max_seq_len=LONG)
    monkeypatch.setattr(kv_cache, "_free_bytes", lambda device: 200 * token)
    with pytest.raises(TrtlaError, match="one sequence may need 5083"):
        LLM(long_model, dtype="float32")


def test_free_memory_is_looked_at_once(long_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else takes some of it meanwhile."""
    token, free = 2 * 2 * 2 * 16 * 4, iter(range(3000, 0, -100))
    monkeypatch.setattr(kv_cache, "_free_bytes", lambda device: next(free) * token)
    with LLM(long_model, dtype="float32") as llm:
        assert 2800 < llm.limits.max_text_len < 3000


def test_lengths_in_python(long_model: Path, engine: Path) -> None:
    for model, most in ((long_model, LONG), (engine, 256)):
        with LLM(model, max_seq_len=100) as llm:
            assert llm.limits.max_text_len == llm.limits.max_input_len == 100
            assert len(llm.generate([[7] * 90])[0].output_ids) == 10
        with pytest.raises(UsageError, match=f"max_seq_len {most + 1} is above"):
            LLM(model, max_seq_len=most + 1)
        with pytest.raises(UsageError, match="max_seq_len is 1"):
            LLM(model, max_seq_len=1)
