"""--chat, --system, messages and Spec-Bench's turns in every command that decodes texts."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_templates import (
    CHATML,
    NO_SYSTEM,
    THINKING,
    UNREADABLE,
    expected_ids,
    with_template,
)
from tests.support.command import Ran, known, needs, refused, there, trtla
from trtla.cli.shared.templates import ADVICE
from trtla.llm.text import Tokenizer

ASK = {"role": "user", "content": "Why?"}
SYSTEM = {"role": "system", "content": "Be brief."}
SPEC = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Shorter."], "reference": ["x"]},
    {"question_id": 101, "category": "math", "turns": ["1 + 1?"]},
]


@pytest.fixture(scope="module")
def chat_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The random model with ChatML's template, whose marks are plain letters to it."""
    return with_template(model, tmp_path_factory.mktemp("chat") / "model", CHATML)


@pytest.fixture
def spec_bench(tmp_path: Path) -> Path:
    path = tmp_path / "spec_bench.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in SPEC))
    return path


def run(model: Path, *args: str | Path, stdin: str = "") -> Ran:
    return trtla(
        "run", "--engine-dir", model, "--max-output-len", "6", "--lookahead", "2,2,2", *args,
        stdin=stdin,
    )  # fmt: skip


def asked(ran: Ran) -> list[tuple[int, ...]]:
    assert ran.code == 0, ran.err
    return [tuple(result["input_ids"]) for result in ran.json["results"]]


def test_run_asks_texts_and_messages_through_the_template(chat_model: Path) -> None:
    line = json.dumps({"messages": [ASK, {"role": "assistant", "content": "So."}, ASK]})
    args = ("--chat", "--input-text", "Why?", "Who?", "--json")
    alone = [expected_ids(chat_model, [{"role": "user", "content": t}]) for t in ("Why?", "Who?")]
    assert asked(run(chat_model, *args)) == alone
    ran = run(chat_model, "--system", "Be brief.", *args, "--input-file", "-", stdin=line)
    first, _, third = asked(ran)
    assert first == expected_ids(chat_model, [SYSTEM, ASK])
    assert third == expected_ids(chat_model, [SYSTEM, *json.loads(line)["messages"]])
    assert ran.json["results"][0]["input_text"].startswith(
        "<|im_start|>system\nBe brief.<|im_end|>"
    )
    own = json.dumps({"messages": [{"role": "system", "content": "Its own."}, ASK]})
    ran = run(chat_model, "--system", "Be brief.", "--input-file", "-", "--json", stdin=own)
    assert asked(ran) == [expected_ids(chat_model, json.loads(own)["messages"])]


def test_a_begun_answer_goes_on_where_that_is_asked_for(chat_model: Path) -> None:
    begun = [ASK, {"role": "assistant", "content": "It "}]
    line = json.dumps({"messages": begun})
    ids = expected_ids(chat_model, [ASK])
    wanted = (*ids, *Tokenizer(chat_model).encode("It ", special=False))
    from_file = ("--input-file", "-", "--json")
    assert asked(run(chat_model, *from_file, "--continue-final-message", stdin=line)) == [wanted]
    own = json.dumps({"messages": begun, "continue_final_message": True})
    answered = json.dumps({"messages": [ASK]})
    assert asked(run(chat_model, *from_file, stdin=f"{own}\n{answered}")) == [wanted, ids]
    ran = run(chat_model, *from_file[:2], stdin=f"{answered}\n{line}")
    refused(ran, 2, "line 2 of stdin: the last message is the", "set continue_final_message")
    for prompt in ({"text": "a"}, {"input_ids": [1]}, {"turns": ["a"]}):
        line = json.dumps({**prompt, "continue_final_message": True})
        ran = run(chat_model, *from_file[:2], stdin=line)
        refused(ran, 2, "continue_final_message, which is for messages", "omit it")
    text = ("--chat", "--input-text", "a", "--continue-final-message")
    assert run(chat_model, *text).code == 0  # texts of the command line are no conversations


def test_a_template_gets_variables_from_the_flag_and_from_lines(model, tmp_path) -> None:
    folder = with_template(model, tmp_path / "model", THINKING)
    thoughts = "</think>\n\n"

    def endings(*args: str, stdin: str = "") -> list[bool]:
        ran = run(folder, *args, "--json", stdin=stdin)
        assert ran.code == 0, ran.err
        return [one["input_text"].endswith(thoughts) for one in ran.json["results"]]

    flag = ("--chat-template-kwargs", json.dumps({"enable_thinking": False}))
    assert endings("--chat", "--input-text", "Why?") == [False]
    assert endings("--chat", "--input-text", "Why?", *flag) == [True]
    kwargs = ({"enable_thinking": True}, {}, {"enable_thinking": False})
    lines = [json.dumps({"messages": [ASK], "chat_template_kwargs": one}) for one in kwargs]
    assert endings("--input-file", "-", stdin="\n".join(lines)) == [False, False, True]
    assert endings("--input-file", "-", *flag, stdin="\n".join(lines)) == [False, True, True]
    line = json.dumps({"text": "a", "chat_template_kwargs": {}})
    refused(run(folder, "--input-file", "-", stdin=line), 2, "is for messages", "omit it")
    line = json.dumps({"messages": [ASK], "chat_template_kwargs": {"tools": []}})
    ran = run(folder, "--input-file", "-", stdin=line)
    refused(ran, 2, "line 1 of stdin: chat_template_kwargs may not set tools", "omit it")


def test_a_given_template_stands_for_the_models(model, chat_model, tmp_path, no_weights) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(NO_SYSTEM)
    ask = ("--chat", "--input-text", "Why?", "--json")
    for folder in (chat_model, model):  # with a template of its own, and without one
        own = with_template(folder, tmp_path / f"own-{folder.name}", NO_SYSTEM)
        wanted = [expected_ids(own, [{"role": "user", "content": "Why?"}])]
        for given in (file, NO_SYSTEM):
            assert asked(run(folder, "--chat-template", given, *ask)) == wanted
        assert asked(run(folder, "--chat-template-file", file, *ask)) == wanted
    ran = run(no_weights, "--chat-template", "chatml", "--chat", "--input-text", "a")
    refused(ran, 2, "--chat-template: chatml does not exist", "give a file with a template")
    pipe, end = os.pipe()  # which can be read once
    os.write(end, NO_SYSTEM.encode())
    os.close(end)
    assert asked(run(model, "--chat-template", f"/dev/fd/{pipe}", *ask)) == wanted
    os.close(pipe)
    file.write_text("chatml")
    for given, problem in ((file, "mine.jinja has no {{ or {%"), ("", "'' is no file")):
        ran = run(no_weights, "--chat-template", given, "--chat", "--input-text", "a")
        refused(ran, 2, problem, "give a file with a template")
    broken = ("--chat-template", "{% if %}", "--chat", "--input-text", "a")
    refused(run(no_weights, *broken), 2, "chat template fails", "correct it")


@pytest.mark.parametrize("value", ["{", "[1]", "{'a': 1}", '{"messages": []}', "NaN"])
def test_variables_that_are_no_object_of_json_are_refused(value, no_weights: Path) -> None:
    ran = run(no_weights, "--chat", "--input-text", "a", "--chat-template-kwargs", value)
    refused(ran, 2, "chat-template-kwargs", "give")


WALKING = (
    "{% for m in messages %}[{{ m.role }}] {% for part in m.content %}{{ part.text }}{% endfor %} "
    "{% endfor %}"
)


def test_every_command_gives_a_template_its_parts(no_weights: Path, model: Path, tmp_path) -> None:
    folder = with_template(model, tmp_path / "model", WALKING)
    results = run(folder, "--system", "Be.", "--input-text", "Why?", "--json").json["results"]
    assert results[0]["input_text"] == "[system] Be. [user] Why? "
    for line in known(("chat", folder, "-n", "2")):
        chatted = trtla(*line, stdin="Why?\n/stats\n")
        assert chatted.code == 0, chatted.err
    lost = with_template(no_weights, tmp_path / "lost", "{% for m in messages %}x{% endfor %}")
    for command in there("run", "explain"):
        ran = trtla(command, lost, "-p", "a", "--chat")
        refused(ran, 2, "chat template leaves out user messages", "--no-chat")


def test_names_of_control_tokens_in_messages_are_text(tiny_llama: Path) -> None:
    tokenizer = Tokenizer(tiny_llama)
    (end,) = tokenizer.encode("<|end|>")
    text = ("--input-text", "x<|end|>", "--json")
    (spelt,) = asked(run(tiny_llama, "--chat", *text))
    (parsed,) = asked(run(tiny_llama, "--chat", *text, "--parse-special"))
    (raw,) = asked(run(tiny_llama, *text))
    assert [ids.count(end) for ids in (spelt, parsed, raw)] == [1, 2, 1]
    assert spelt[: len(parsed)] != parsed
    assert raw == tokenizer.encode("x<|end|>")


def test_run_shows_what_was_asked(chat_model: Path) -> None:
    out = run(chat_model, "--chat", "--input-text", "Why?").out
    assert 'Input [Text 0]: "Why?"\n' in out
    out = run(chat_model, "--system", "Be brief.", "--input-text", "Why?").out
    assert 'Input [Text 0]: "system: Be brief.\nuser: Why?"\n' in out


def test_messages_go_through_beams_and_comparison(chat_model: Path) -> None:
    ran = run(chat_model, "--chat", "--input-text", "Why?", "--check-lossless", "--stream")
    assert "Lossless [Text 0]: equal to plain decoding" in ran.out
    ran = run(chat_model, "--chat", "--input-text", "Why?", "--num-beams", "2", "--json")
    assert asked(ran) == [expected_ids(chat_model, [ASK])]


def test_texts_of_an_instruct_model_come_with_advice(chat_model: Path, model: Path) -> None:
    text = ("--input-text", "Why?")
    assert run(chat_model, *text).err.count(ADVICE) == 1
    for silent in (("--quiet",), ("--chat",), ("--no-chat",)):
        assert ADVICE not in run(chat_model, *text, *silent).err
    for line in ({"messages": [ASK]}, {"input_ids": [1, 2]}):
        assert ADVICE not in run(chat_model, "--input-file", "-", stdin=json.dumps(line)).err
    assert ADVICE not in run(model, *text).err


def test_an_error_comes_without_that_advice(no_weights: Path, tmp_path: Path) -> None:
    ran = trtla("run", with_template(no_weights, tmp_path / "model", CHATML), "-p", "Why?")
    refused(ran, 2, "has no weights")
    assert ran.err.startswith("error: ")


def commands(model: Path, folder: Path, articles: Path) -> dict[str, tuple[str | Path, ...]]:
    """Each command on a text of its own; what it writes would be in the folder."""
    own = ("--engine-dir", model)
    return {
        "run": ("run", *own, "--input-text", "a"),
        "explain": ("explain", *own, "--input-text", "a"),
        "bench": ("bench", *own, "--prompts", "code"),
        "ablation": ("bench", "--ablation", *own, "--output", folder / "a.csv"),
        "summarize": ("summarize", *own, "--dataset", articles, "--output", folder / "s.jsonl"),
        "tune": ("tune", *own, "--write", folder / "tuned.yaml"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [*there("run", "explain", "bench", "summarize", "tune"), *["ablation"] * len(there("bench"))],
)
def test_what_no_template_takes_is_refused_before_the_model_is_loaded(
    name: str, no_weights: Path, articles: Path, tmp_path: Path
) -> None:
    written = tmp_path / "written"
    written.mkdir()
    command = commands(no_weights, written, articles)[name]
    refused(trtla(*command, "--chat"), 2, f"the tokenizer in {no_weights} has no chat template")
    folder = with_template(no_weights, tmp_path / "model", NO_SYSTEM)
    command = commands(folder, written, articles)[name]
    ran = trtla(*command, "--system", "x")
    refused(ran, 2, "fails: System role not supported", "--no-chat")
    refused(trtla(*command, "--system", "x", "--no-chat"), 2, "--system is a message")
    with_template(no_weights, folder, UNREADABLE)
    refused(trtla(*command, "--chat"), 2, "the model's chat template fails: ")
    assert list(written.iterdir()) == []
    assert "has no weights" in trtla(*command).err


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ({"messages": []}, ("line 1 of stdin: messages is empty",)),
        ({"messages": "Why?"}, ("line 1 of stdin: \"messages\" is 'Why?'",)),
        ({"messages": ["Why?"]}, ("line 1 of stdin: messages[0] is 'Why?', not a message",)),
        ({"messages": [{"role": "uzer", "content": "a"}]}, ("has the role 'uzer'", "mean user?")),
        (
            {"messages": [ASK, {"role": "user"}]},
            ("line 1 of stdin: messages[1] (user) has no content",),
        ),
        ({"messages": [ASK], "text": "a"}, ('either "text", "input_ids", "messages" or "turns"',)),
        ({"turns": []}, ("line 1 of stdin has an empty prompt",)),
        ({"turns": ["a", ""]}, ("turn 2 of line 1 of stdin has an empty prompt",)),
    ],
)
def test_bad_messages_are_named(
    line: dict[str, Any], parts: tuple[str, ...], no_weights: Path
) -> None:
    refused(run(no_weights, "--input-file", "-", stdin=json.dumps(line)), 2, *parts)


def test_a_line_that_the_template_refuses_is_named(no_weights: Path, tmp_path: Path) -> None:
    folder = with_template(no_weights, tmp_path / "model", NO_SYSTEM)
    lines = [{"messages": [ASK]}, {"messages": [ASK, ASK]}]
    ran = run(folder, "--input-file", "-", stdin="\n".join(map(json.dumps, lines)))
    refused(
        ran, 2, "line 2 of stdin: the model's chat template", "roles must alternate user/assistant"
    )


def test_token_ids_are_no_chat(no_weights: Path) -> None:
    ran = run(no_weights, "--chat", "--input-file", "-", stdin='{"input_ids": [1]}')
    refused(ran, 2, "line 1 of stdin has token ids", "omit --chat")


def test_run_reads_spec_bench_with_both_turns(
    chat_model: Path, model: Path, spec_bench: Path
) -> None:
    given = ("--input-file", spec_bench, "--temperature", "0.7", "--json")
    ran = run(chat_model, *given, "--check-lossless")
    assert ADVICE not in ran.err
    first, second, alone = asked(ran)
    answer = ran.json["results"][0]["text"]
    asks = [{"role": "user", "content": text} for text in ("Write.", "Shorter.", "1 + 1?")]
    assert first == expected_ids(chat_model, asks[:1])
    said = [asks[0], {"role": "assistant", "content": answer}, asks[1]]
    assert second == expected_ids(chat_model, said)
    assert alone == expected_ids(chat_model, asks[2:])
    assert all(result["lossless"] for result in ran.json["results"])
    assert [result["index"] for result in ran.json["results"]] == [0, 1, 2]
    for raw in (run(model, *given), run(chat_model, *given, "--no-chat")):
        texts = [result["input_text"] for result in raw.json["results"]]
        assert texts == ["Write.", f"Write.{raw.json['results'][0]['text']}\nShorter.", "1 + 1?"]


def test_turns_share_the_room_where_no_length_is_given(tiny_llama: Path, tmp_path: Path) -> None:
    engine, questions = tmp_path / "engine", ("class A:", "def b(c):", "import d")
    trtla("build", "--checkpoint-dir", tiny_llama, "--output-dir", engine, "--max-seq-len", "128")
    args = ("run", "-m", engine, "--input-file", "-", "--json", "--check-lossless", "--no-chat")
    ran = trtla(*args, stdin=json.dumps({"turns": questions}))
    assert ran.code == 0, ran.err
    assert all(result["lossless"] for result in ran.json["results"])
    first, second, third = ran.json["results"]
    tokenizer = Tokenizer(tiny_llama)
    alone = sum(len(tokenizer.encode(question)) for question in questions)
    assert len(first["output_ids"]) == (128 - alone) // 3
    assert third["input_text"].startswith(f"{second['input_text']}{second['text']}\n")


def test_second_turns_stream_and_take_no_beams(chat_model: Path, spec_bench: Path) -> None:
    ran = run(chat_model, "--input-file", spec_bench, "--stream")
    places = [ran.out.index(f"Output [Text {i} Beam 0]") for i in range(3)]
    assert places == sorted(places)
    ran = run(chat_model, "--input-file", spec_bench, "--num-beams", "2")
    refused(ran, 2, "turn 2 of line 1", "--num-beams")


def bench(model: Path, *args: str | Path) -> Ran:
    return trtla(
        "bench", "--engine-dir", model, "--lookahead", "2,2,2", "--max-output-len", "6",
        "--temperature", "0", "--rounds", "1", "--json", *args,
    )  # fmt: skip


@needs("bench")
def test_bench_asks_spec_bench_in_the_template_and_texts_on_request(
    chat_model: Path, spec_bench: Path, tmp_path: Path
) -> None:
    ran = bench(chat_model, "--prompts", spec_bench)
    assert ran.code == 0, ran.err
    assert ADVICE not in ran.err
    assert "plain decoding answers the first turns of writing" in ran.err
    writing, math = ran.json["cells"]
    ask = len(expected_ids(chat_model, [{"role": "user", "content": "1 + 1?"}]))
    assert (writing["prompts"], math["prompts"]) == (2, 1)
    assert math["mean_prompt_tokens"] == ask
    assert writing["mean_prompt_tokens"] > ask
    assert all(row["equal_texts"] == row["texts"] for row in ran.json["rows"])
    raw = bench(chat_model, "--prompts", spec_bench, "--no-chat", "--categories", "math")
    assert raw.json["cells"][0]["mean_prompt_tokens"] == len("1 + 1?")
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"category": "math", "text": "1 + 1?"}\n')
    ran = bench(chat_model, "--prompts", texts)
    assert ran.err.count(ADVICE) == 1
    assert ran.json["cells"][0]["mean_prompt_tokens"] == len("1 + 1?")
    ran = bench(chat_model, "--prompts", texts, "--chat")
    assert ran.json["cells"][0]["mean_prompt_tokens"] == ask
    given = ("--chat", "--chat-template", "{{ messages[0].content }}!")
    ran = bench(chat_model, "--prompts", texts, *given)
    assert ran.json["cells"][0]["mean_prompt_tokens"] == len("1 + 1?!")


@needs("bench", "explain")
def test_an_ablation_and_explain_ask_in_the_template(chat_model: Path, tmp_path: Path) -> None:
    rows, prompts = tmp_path / "rows.csv", tmp_path / "prompts.txt"
    prompts.write_text("Why?\n")
    ran = trtla(
        "bench", "--ablation", "--engine-dir", chat_model, "--prompts", prompts, "--chat",
        "--processor", "greedy", "--max-output-len", "4", "--output", rows, "-q",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    ids = expected_ids(chat_model, [ASK])
    with rows.open(newline="") as file:
        assert {row["prompt_tokens"] for row in csv.DictReader(file)} == {str(len(ids))}
    ran = trtla("explain", "--engine-dir", chat_model, "-p", "Why?", "--chat", "-n", "4", "--json")
    assert ran.code == 0, ran.err
    assert tuple(ran.json["result"]["input_ids"]) == ids


def test_summarize_asks_for_the_summary_as_a_message(
    chat_model: Path, articles: Path, tmp_path: Path
) -> None:
    def prompts(*more: str) -> list[int]:
        ran = trtla(
            "summarize", "--engine-dir", chat_model, "--dataset", articles, "--max-output-len", "4",
            "--output", tmp_path / "out.jsonl", "--lookahead", "2,2,2", *more,
        )  # fmt: skip
        assert ran.code == 0, ran.err
        lines = (tmp_path / "out.jsonl").read_text().splitlines()
        return [json.loads(line)["input_tokens"] for line in lines]

    article = json.loads(articles.read_text().splitlines()[0])["article"]
    asked = [{"role": "user", "content": f"{article} TL;DR:"}]
    assert prompts("--chat")[0] == len(expected_ids(chat_model, asked))
    assert prompts("--chat", "--max-input-len", "80")[0] <= 80
