"""`trtla batch`: the files it writes, every line that is wrong, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.extras.batch.support import (
    CHAT,
    SHIPPED,
    ask,
    batch,
    chat,
    content,
    read,
    respond,
    same_time,
    texts,
    write,
)
from tests.support.command import ROOT, refused, trtla
from tests.support.served import serving


def without(line: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != key}


WRONG: list[tuple[Any, str | None, str, str | None, str | None]] = [
    ("nope", None, "line {} is not JSON: Expecting value", None, "invalid_line"),
    ('{"custom_id": "cut", "body"', None, "line {} is not JSON: ", None, "invalid_line"),
    ('{"custom_id": NaN}', None, "line {} is not JSON: it holds NaN", None, "invalid_line"),
    ("[" * 5000, None, "line {} is not JSON: ", None, "invalid_line"),
    ('{"custom_id": "\\ud800"}', None, "half of a surrogate pair", None, "invalid_line"),
    ("[1]", None, "line {} is not a JSON object", None, "invalid_line"),
    ("null", None, "line {} is not a JSON object", None, "invalid_line"),
    (without(ask("x1"), "custom_id"), None, "line {} has no custom_id", "custom_id", None),
    (without(ask("x2"), "method"), "x2", "line {} has no method", "method", None),
    (without(ask("x3"), "url"), "x3", "line {} has no url", "url", None),
    (without(ask("x4"), "body"), "x4", "line {} has no body", "body", None),
    ({**ask("x5"), "more": 1}, "x5", "line {} has the unknown key 'more'", "more", None),
    ({**ask("x6"), "custom_id": 7}, None, "line {} has a custom_id", "custom_id", None),
    ({**ask("x7"), "custom_id": ""}, "", "line {} has a custom_id", "custom_id", None),
    ({**ask("x8"), "method": "GET"}, "x8", "line {} has a method", "method", None),
    ({**ask("x9"), "url": "/v1/embeddings"}, "x9", "line {} has a url", "url", None),
    ({**ask("x10"), "url": ["a"]}, "x10", "line {} has a url", "url", None),
    ({**ask("x11"), "body": 7}, "x11", "the body ", None, "invalid_parameter"),
    (ask("x12", stream=True), "x12", "stream is not for batches", "stream", None),
    (ask("good"), "good", "line {} has the custom_id of line 1", "custom_id", None),
    (ask("x13", temprature=1), "x13", "did you mean temperature?", "temprature", None),
    (ask("x14", temperature=-1), "x14", "temperature", "temperature", "invalid_parameter"),
    (ask("x15", ""), "x15", "prompt", "prompt", "invalid_parameter"),
    (ask("x16", [99999]), "x16", "outside the vocabulary", "prompt", None),
    (ask("x17", "a " * 3000), "x17", "shorten it", "prompt", "context_length_exceeded"),
    (ask("x18", lookahead=[9, 9, 9]), "x18", "lookahead", "lookahead", None),
    (ask("x19", drafter="draft:/etc/passwd"), "x19", "is not loaded", "drafter", None),
    ({**ask("x20"), "url": CHAT}, "x20", "a field of /v1/completions", "prompt", None),
    (chat("x21", tools=[{}]), "x21", "tools.0.type is missing", "tools.0.type", None),
    (respond("x22", ""), "x22", "a text, or a list of items", "input", None),
    (respond("x23", stream=True), "x23", "stream is not for batches", "stream", None),
]  # fmt: skip
"""Lines, then what their errors have: custom_id, message, param and code; None: any code."""
UNNAMED = [ask("y1", model="gpt-4o")]


def test_every_wrong_line_is_an_error_of_that_line(tmp_path: Path) -> None:
    lines = [ask("good"), *(one[0] for one in WRONG), *UNNAMED, chat("last")]
    ran = batch(write(tmp_path / "in", lines), tmp_path / "out")
    assert ran.code == 1
    assert f"error: 32 of {len(lines)} lines failed; the first, line 2 is not JSON: " in ran.err
    assert ran.err.endswith(f"hint: all are in {tmp_path / 'out' / 'errors.jsonl'}\n")
    assert [one["custom_id"] for one in read(tmp_path / "out" / "output.jsonl")] == ["good", "last"]
    errors = read(tmp_path / "out" / "errors.jsonl")
    for number, (found, expected) in enumerate(zip(errors, WRONG, strict=False), 2):
        _, custom_id, message, param, code = expected
        error = found["response"]["body"]["error"]
        assert (found["custom_id"], error["param"]) == (custom_id, param)
        assert message.format(number) in error["message"]
        assert found["response"]["status_code"] == 400
        assert error["type"] == "invalid_request_error"
        assert code in (None, error["code"])
    assert errors[-1]["response"]["status_code"] == 404
    said = errors[-1]["response"]["body"]["error"]["message"]
    assert said == "the model 'gpt-4o' is not here; --served-model-name has 'tiny-llama'"
    ids = [one["id"] for one in [*errors, *read(tmp_path / "out" / "output.jsonl")]]
    assert len(set(ids)) == len(ids) == len(lines)


def test_only_files_with_lines_are_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = batch(write(tmp_path / "in", ["nope"]), out)
    assert ran.code == 1
    assert "error: 1 of 1 line failed; the first, line 1 is not JSON" in ran.err
    assert "errors.jsonl" in ran.err
    assert "output.jsonl" not in ran.err
    ran = batch(write(tmp_path / "in", [ask("a")]), out, "--force")
    assert ran.code == 0
    assert f"note: the answers are in {out / 'output.jsonl'}\n" in ran.err


def test_the_form_of_an_answer(tmp_path: Path) -> None:
    lines = [ask("b", model="gpt-4o"), chat("a")]
    source = write(tmp_path / "in", lines)
    ran = batch(source, tmp_path / "out", "--served-model-name", "gpt-4o", "--json")
    assert ran.code == 0
    job = json.loads((tmp_path / "out" / "job.json").read_text())
    first, second = read(tmp_path / "out" / "output.jsonl")
    key = first["id"].removeprefix("batch_req_")
    assert list(first) == ["id", "custom_id", "response", "error"]
    assert (first["custom_id"], first["error"]) == ("b", None)
    answer = first["response"]
    assert (answer["status_code"], answer["request_id"]) == (200, f"req_{key}")
    body = answer["body"]
    assert (body["id"], body["object"]) == (f"cmpl-{key}", "text_completion")
    assert (body["model"], body["created"]) == ("gpt-4o", job["created"])
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert second["response"]["body"]["object"] == "chat.completion"
    assert (tmp_path / "out" / "errors.jsonl").read_bytes() == b""
    document = ran.json
    assert document["command"] == "batch"
    assert (document["lines"], document["answered"], document["failed"]) == (2, 2, 0)
    assert document["output_tokens"] == 8
    assert document["this_run"]["before"] == 0
    assert document["tokens_per_step"] >= 1
    assert ran.err.endswith("batch: 2 of 2 lines, 0 failed, " + ran.err.rpartition("failed, ")[2])


BEGUN = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "def f("}]


def test_texts_are_those_of_the_server_and_of_run(tmp_path: Path) -> None:
    lines = [
        ask("greedy", "def fib(n):", max_tokens=24),
        ask("ids", [10, 11, 12], max_tokens=8),
        ask("several", ["import ", "class A"], n=2, temperature=0.8, seed=3, logprobs=2),
        ask("filters", "x = ", temperature=1.0, top_k=5, top_p=0.9, seed=1, max_tokens=16),
        ask("stop", "def f(", stop=["\n"], max_tokens=40),
        ask("token", "def f(", stop_token_ids=[11, 27], max_tokens=40),
        chat("begun", continue_final_message=True, messages=BEGUN),
        ask("triple", "for i in", lookahead=[3, 3, 3], max_tokens=16),
        ask("usual", "while "),
        chat("chat", "What is Python?", max_tokens=16),
        chat("probable", logprobs=True, top_logprobs=2, seed=5, temperature=1),
        respond("response", "What is Python?", max_output_tokens=16, top_logprobs=1, seed=5),
    ]
    lines[8]["body"].pop("max_tokens")
    out = tmp_path / "out"
    assert batch(write(tmp_path / "in", lines), out, "-q").code == 0
    answers = {one["custom_id"]: one["response"]["body"] for one in read(out / "output.jsonl")}
    with serving() as served:
        for line in lines:
            asked = served.http.post(line["url"], json=line["body"]).json()
            given = answers[line["custom_id"]]
            if "output" in asked:  # its items have ids of their own
                (found,), (wanted,) = given["output"], asked["output"]
                assert found | {"id": wanted["id"]} == wanted
                assert given["usage"]["output_tokens"] == asked["usage"]["output_tokens"] == 16
            else:
                assert given["choices"] == asked["choices"], line
    for name, length in (("greedy", 24), ("usual", 16)):
        prompt = next(one for one in lines if one["custom_id"] == name)["body"]["prompt"]
        ran = trtla("run", "-m", SHIPPED, "-p", prompt, "-n", length, "-q")
        assert ran.out.rstrip("\n") == texts(out)[name][0].rstrip("\n")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An input, and the folder of its job, which is finished."""
    folder = tmp_path_factory.mktemp("begun")
    source = write(folder / "in", [ask("a"), ask("b", temprature=1)])
    assert batch(source, folder / "out", "-q").code == 1
    return source, folder / "out"


def test_a_finished_job_does_nothing(begun: tuple[Path, Path]) -> None:
    source, out = begun
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    ran = batch(source, out)
    assert ran.code == 1
    assert f"note: the job in {out} is finished; --force starts again\n" in ran.err
    assert "runs on" not in ran.err
    assert '1 of 2 lines failed; the first, custom_id "b": temprature' in ran.err
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    ran = batch(source, out, "--json")
    assert (ran.code, ran.json["failed"], ran.json["this_run"]) == (1, 1, None)


@pytest.mark.parametrize("finished", [True, False])
def test_another_job_in_the_folder_is_refused(
    begun: tuple[Path, Path], tmp_path: Path, finished: bool
) -> None:
    source, before = begun
    out = tmp_path / "out"
    same_time(before, out)
    (out / "journal").write_text("something was done")
    if finished:
        shutil.rmtree(out)
        shutil.copytree(before, out)
    other = write(tmp_path / "other", [ask("c")])
    model = tmp_path / "model"
    shutil.copytree(SHIPPED, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "rope_theta": 12345.0}))
    hint = "choose another -o, or start again with --force"
    refused(batch(other, out), 2, f"{out} holds a job with another input", hint)
    names = ("-m", model, "--served-model-name", "tiny-llama")
    refused(trtla("batch", source, "-o", out, *names), 2, "holds a job with another model", hint)
    ran = batch(source, out, "--dtype", "float32")
    refused(ran, 2, "holds a job with dtype auto, not float32", hint)
    ran = batch(source, out, "--served-model-name", "x")
    refused(ran, 2, "holds a job with served_model_name tiny-llama, not x", hint)
    ran = batch(source, out, "--chat-template", "{{ messages }}" * 20)
    refused(ran, 2, "holds a job with another chat_template", hint)
    ran = batch(other, out, "-q", "--force")
    assert ran.code == 0, ran.err
    assert list(texts(out)) == ["c"]


def test_a_job_that_has_done_nothing_makes_room(begun: tuple[Path, Path], tmp_path: Path) -> None:
    source, before = begun
    refused(batch(source, tmp_path, "--tp-size", "3"), 2, "tp_size 3 does not divide")
    assert batch(source, tmp_path, "-q").code == 1
    assert list(texts(tmp_path)) == list(texts(before))


def test_a_model_that_was_moved_and_settings_of_speed_go_on(
    begun: tuple[Path, Path], tmp_path: Path
) -> None:
    source, before = begun
    same_time(before, tmp_path / "out")
    shutil.copytree(SHIPPED, tmp_path / "tiny-llama")
    speed = ("--max-batch-size", "1", "--drafter", "ngram", "--threads", "1")
    model = ("-m", tmp_path / "tiny-llama", "--no-kv-cache-enable-block-reuse")
    ran = trtla("batch", source, "-o", tmp_path / "out", *model, *speed)
    assert ran.code == 1
    assert "lines failed" in ran.err
    assert content(tmp_path / "out") == content(before)


def test_files_of_no_job_are_left_alone(begun: tuple[Path, Path], tmp_path: Path) -> None:
    source, before = begun
    out = tmp_path / "out"
    out.mkdir()
    for name in ("output.jsonl", "errors.jsonl", "journal"):
        (out / name).write_text("mine")
        refused(batch(source, out), 2, f"{out / name} is of no job", "--force")
        assert (out / name).read_text() == "mine"
        (out / name).unlink()
    for text in ("{}", "[1]", "no json", '{"finished": null}'):
        (out / "job.json").write_text(text)
        refused(batch(source, out), 2, f"{out / 'job.json'} is no file of trtla batch", "another")
        refused(batch(source, out, "--force"), 2, "is no file of trtla batch")
    shutil.rmtree(out)
    shutil.copytree(before, out)
    (out / "errors.jsonl").unlink()
    refused(batch(source, out), 2, f"the job is finished, and {out / 'errors.jsonl'} is gone")


def test_places_that_cannot_be(begun: tuple[Path, Path]) -> None:
    source, _ = begun
    refused(batch(source, source), 2, f"{source} cannot be written: File exists", "another -o")
    refused(batch(source, Path("/proc/x/out")), 2, "/proc/x/out cannot be written")


@pytest.mark.parametrize(
    ("data", "said"),
    [(None, "cannot be read: No such file"), (b"", "has no line")],
)
def test_an_input_that_is_none_is_refused_without_a_model(
    tmp_path: Path, data: bytes | None, said: str
) -> None:
    source = tmp_path / "in"
    if data is not None:
        source.write_bytes(data)
    refused(batch(source, tmp_path / "out"), 2, said)
    assert not (tmp_path / "out").exists()
    ran = batch(source, tmp_path / "out", "--json")
    assert (ran.code, ran.json["error"]["type"]) == (2, "UsageError")


def test_a_model_without_a_tokenizer_is_refused(bare_engine: Path, tmp_path: Path) -> None:
    ran = trtla("batch", write(tmp_path / "in", [ask("a")]), "-o", tmp_path / "out", "-m",
                bare_engine, "-q")  # fmt: skip
    refused(ran, 2, "has no tokenizer files, and a batch speaks text", "--tokenizer-dir")


def test_a_model_without_a_template_answers_completions(engine: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in", [ask("a"), chat("b")])
    ran = trtla("batch", source, "-o", tmp_path / "out", "-m", engine, "-q")
    assert ran.code == 1
    assert list(texts(tmp_path / "out")) == ["a"]
    (error,) = read(tmp_path / "out" / "errors.jsonl")
    assert "no chat template" in error["response"]["body"]["error"]["message"]


def test_a_job_with_rejection_does_not_go_on_without(tmp_path: Path) -> None:
    source, out = write(tmp_path / "in", [ask("a", temperature=1.0)]), tmp_path / "out"
    assert batch(source, out, "--drafter", f"draft:{SHIPPED}", "--rejection").code == 0
    refused(batch(source, out), 2, f"{out} holds a job with another drafter", "--force")


@pytest.mark.deep
def test_it_works_without_the_packages_of_serve(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [ask("a"), chat("b", logprobs=True)])
    code = (
        "import sys\n"
        "for name in ('fastapi', 'starlette', 'uvicorn', 'prometheus_client'):\n"
        "    sys.modules[name] = None\n"
        "from trtla.cli import main\n"
        f"main(['batch', {str(source)!r}, '-o', {str(tmp_path / 'out')!r}, '-m', "
        f"{str(SHIPPED)!r}])\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert list(texts(tmp_path / "out")) == ["a", "b"]
