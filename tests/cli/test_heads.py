"""--drafter head:PATH on the command line: figures, the note, and where heads are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command import known, needs, refused, trtla
from tests.support.heads import fitting, write_head
from tests.support.trtllm_engines import write_engine
from trtla.formats.model import Model

PROMPT = ("-p", "def f(x):", "-n", "48")


@pytest.fixture(scope="module")
def head(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads") / "random"
    return write_head(folder, **fitting(Model.at(tiny_llama).config))


def test_run_tells_what_a_head_did_and_that_it_is_never_right(tiny_llama: Path, head: Path) -> None:
    own = (f"--drafter=head:{head}", "--lookahead-nodes", "2")
    ran = trtla("run", "-m", tiny_llama, *PROMPT, *own, "--check-lossless", "--json")
    assert ran.code == 0, ran.err
    stats, plain = ran.json["stats"], ran.json["plain_stats"]
    assert stats["head_forwards"] >= stats["steps"] > 20
    assert stats["head_s"] > 0.0
    assert (plain["head_forwards"], plain["head_s"]) == (0, 0.0)
    assert ran.err.count(f"note: the head {head} is right 0 % of the time: it may be") == 1
    without = trtla("run", "-m", tiny_llama, *PROMPT, "--json")
    assert without.json["stats"]["head_forwards"] is None
    assert "is right" not in without.err


def test_summarize_opens_with_a_head(tiny_llama: Path, head: Path, articles: Path) -> None:
    sides = ("--test-trtla", "--dataset", articles, "-n", "12", "--drafter", f"head:{head}")
    ran = trtla("summarize", "-m", tiny_llama, *sides, "--lookahead-nodes", "2", "--json")
    assert ran.code == 0, ran.err
    ours, plain = ran.json["rows"]
    assert ours["equal_texts"] == plain["texts"] == 2
    assert sum(ours["sources"]["head"]["fed"]) > 0


LINES = known(
    ("run", "-p", "a"),
    ("serve",),
    ("bench",),
    ("chat",),
    ("summarize",),
)


@pytest.mark.parametrize("line", LINES)
def test_engines_of_tensorrt_llm_refuse_heads(line, head: Path, tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine")
    own = ("--lookahead", "7,7,7", "--drafter", f"head:{head}")
    ran = trtla(line[0], "-m", engine, *line[1:], *own)
    refused(ran, 2, f"--drafter asks for the drafter head:{head}, but an engine of TensorRT-LLM",
            "omit --drafter, or build with --backend torch")  # fmt: skip


@needs("chat")
def test_a_chat_chooses_among_the_heads_that_it_was_started_with(
    tiny_llama: Path, head: Path
) -> None:
    lines = f"/max_output_len 12\n/drafter head:nowhere\n/drafter head:{head}\ndef f(x):\n"
    ran = trtla("chat", tiny_llama, "--no-chat", "--head", head, stdin=lines)
    assert ran.code == 2  # of the refused line
    assert "the head nowhere is not loaded; start again with --head nowhere" in ran.err
    assert f"/drafter is now head:{head}" in ran.err
    plain = trtla("run", "-m", tiny_llama, "-p", "def f(x):", "-n", "12", "-q")
    assert ran.out.strip() == plain.out.strip()


@needs("chat")
def test_a_head_beside_the_model_drafts_in_a_chat(
    tiny_llama: Path, head: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    shutil.copytree(head, model / "head")
    ran = trtla("chat", model, stdin="/drafter\n")
    assert ran.code == 0, ran.err
    assert f"/drafter is lookahead,head:{model / 'head'}" in ran.err


@needs("batch")
def test_a_batch_opens_with_heads(tiny_llama: Path, head: Path, tmp_path: Path) -> None:
    other = write_head(tmp_path / "other", "medusa")
    body = {"model": "tiny", "prompt": "def f(x):", "max_tokens": 12, "temperature": 0}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
    texts = []
    for number, (wanted, *flags) in enumerate(
        ((None,), (None, "--drafter", f"head:{head}"), (other, "--head", head, "--head", other))
    ):
        drafter = {} if wanted is None else {"drafter": f"head:{wanted}"}
        written = json.dumps(line | {"body": body | drafter})
        (tmp_path / "in.jsonl").write_text(f"{written}\n")
        out = tmp_path / str(number)
        files = (tmp_path / "in.jsonl", "-m", tiny_llama, "-o", out)
        ran = trtla("batch", *files, "--served-model-name", "tiny", *flags)
        assert ran.code == 0, ran.err
        answer = json.loads((out / "output.jsonl").read_text())["response"]["body"]
        texts.append(answer["choices"][0]["text"])
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("command", known(("serve",), ("chat",)))
def test_heads_that_do_not_fit_are_refused_before_a_model_is_loaded(
    command, tiny_llama: Path, head: Path, tmp_path: Path
) -> None:
    other = write_head(tmp_path / "other", vocab_size=512)
    ran = trtla(*command, tiny_llama, "--head", head, "--head", other)
    refused(ran, 2, f"{other} holds an EAGLE-3 head for a vocab_size of 512")
