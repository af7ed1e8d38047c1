"""`trtla run` on a tiny random model: inputs, output forms, mixtures, streaming, lossless check."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import TextIO

import pytest

from tests.support.command import refused, there, trtla
from trtla.runtime.threads import num_threads, set_threads

RESULT_KEYS = {
    "index", "input_text", "input_ids", "output_ids", "text", "finish_reason", "drafter",
    "lookahead", "steps", "tokens_per_step", "drafted", "accepted", "accepted_per_pos", "sources",
    "distinct_4grams",
}  # fmt: skip


def test_texts_are_printed_as_run_py_does(engine: Path) -> None:
    ran = trtla(
        "run", "--engine-dir", engine, "--input-text", "one", "two", "--max-output-len", "8"
    )
    assert ran.code == 0, ran.err
    assert 'Input [Text 0]: "one"\nOutput [Text 0 Beam 0]: "' in ran.out
    assert 'Input [Text 1]: "two"\nOutput [Text 1 Beam 0]: "' in ran.out
    assert "| text | tokens/s | tokens/step | first token |" in ran.out
    assert "\x1b[" not in ran.out


def test_json_document(engine: Path) -> None:
    ran = trtla("run", "--engine-dir", engine, "--input-text", "ab", "-n", "32", "--json")
    assert ran.code == 0, ran.err
    document = ran.json
    assert document["schema_version"] == 1
    (result,) = document["results"]
    assert set(result) == RESULT_KEYS
    assert result["input_text"] == "ab"
    assert result["lookahead"] == [4, 3, 4]
    assert len(result["output_ids"]) <= 32
    behind = len(result["output_ids"]) - 1
    assert result["tokens_per_step"] == pytest.approx(behind / result["steps"])
    assert sum(result["accepted_per_pos"]) * result["steps"] == pytest.approx(result["accepted"])
    assert {"ttft_ms", "time_s", "tokens_per_s", "steps"} <= set(document["stats"])
    assert 0 < document["stats"]["ttft_ms"] <= 1000 * document["stats"]["time_s"]
    assert document["stats"]["accepted_per_pos"] == result["accepted_per_pos"]
    assert document["stats"]["output_tokens"] == len(result["output_ids"])


def test_texts_come_from_flags_in_any_form_and_from_stdin(engine: Path) -> None:
    args = ("run", "--engine-dir", engine, "--max_output_len", "2", "--json")
    for given, stdin, expected in (
        (("--input-text", "a", "b", "-q", "--input_text=c", "d"), "", ["a", "b", "c", "d"]),
        (("-p", "-x", "b", "-p=c", "-p", "d"), "", ["-x", "b", "=c", "d"]),
        (("--input-text", "-"), "two\nlines\n", ["two\nlines"]),
        (("--input-file", "-"), "one\n\ntwo\n", ["one", "two"]),
    ):
        ran = trtla(*args, *given, stdin=stdin)
        assert ran.code == 0, ran.err
        assert [r["input_text"] for r in ran.json["results"]] == expected
        assert {len(r["output_ids"]) for r in ran.json["results"]} == {2}
    ran = trtla(*args, "--input-file", "-", stdin='{"input_ids": [1, 2]}\n')
    assert ran.json["results"][0]["input_ids"] == [1, 2]


def piped(text: bytes) -> TextIO:
    """A pipe that this text was written to, and that is closed."""
    ours, theirs = os.pipe()
    os.write(theirs, text)
    os.close(theirs)
    return os.fdopen(ours)


def test_a_pipe_is_the_prompt_where_nothing_else_is(engine: Path) -> None:
    args = ("run", "-m", engine, "-n", "2", "--json")
    with piped(b"two\nlines\n\n") as pipe:
        ran = trtla(*args, stdin=pipe)
    assert [r["input_text"] for r in ran.json["results"]] == ["two\nlines\n"]
    with piped(b"unread") as pipe:
        ran = trtla(*args, "-p", "ab", stdin=pipe)
        assert pipe.read() == "unread"
    assert [r["input_text"] for r in ran.json["results"]] == ["ab"]
    with piped(b"") as pipe, open(os.devnull) as null:
        for stdin in (pipe, null):
            refused(trtla("run", "-m", engine, stdin=stdin), 2, "there is no prompt")


def test_a_pipe_that_brings_nothing_is_announced(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtla.cli.run.run._WAIT_S", 0.01)
    ours, theirs = os.pipe()
    writer = threading.Timer(0.2, lambda: (os.write(theirs, b"ab"), os.close(theirs)))
    writer.start()
    with os.fdopen(ours) as pipe:
        ran = trtla("run", "-m", engine, "-n", "2", stdin=pipe)
    assert ran.err.startswith("note: reads the prompt from stdin")
    assert 'Input [Text 0]: "ab"' in ran.out


def test_texts_are_long_unless_the_engine_is_small(engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "abc"}\n{"text": "abc", "max_output_len": 5}\n')
    ran = trtla("run", "-m", engine, "--input-file", path, "--json", "--seed", "3")
    assert ran.code == 0, ran.err
    first, second = ran.json["results"]
    assert len(first["input_ids"]) + len(first["output_ids"]) == 256
    assert first["finish_reason"] == "length"
    assert len(second["output_ids"]) == 5
    assert "note: 2 texts are cut at 5 to 253 tokens; the context of 256 tokens is full" in ran.err
    refused(trtla("run", "-m", engine, "-p", "abc", "-n", "256"), 2, "above max_seq_len 256")


def test_a_text_that_was_cut_says_so(engine: Path) -> None:
    cut = trtla("run", "-m", engine, "-p", "abc", "-n", "5")
    assert cut.err.endswith("note: text 0 is cut at 5 tokens; -n allows more\n")
    assert "cut" not in trtla("run", "-m", engine, "-p", "abc", "-n", "5", "-q").err
    first = trtla("run", "-m", engine, "-p", "abc", "-n", "5", "--json").json["results"][0]
    end = first["output_ids"][0]
    ended = trtla("run", "-m", engine, "-p", "abc", "-n", "5", "--stop-token-ids", str(end))
    assert "cut" not in ended.err


def test_a_lines_own_settings_win_over_flags(engine: Path, tmp_path: Path) -> None:
    lines = [
        {"text": "ab", "lookahead": [2, 2, 2], "max_output_len": 3},
        {
            "text": "ab",
            "lookahead": "1,1,0",
            "temperature": 1.5,
            "top_k": 7,
            "top_p": 0.9,
            "seed": 3,
        },
        {"text": "ab", "stop": ["zz", "yy"]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = trtla(
        "run", "--engine-dir", engine, "--input-file", path, "--request-lookahead", "3,3,3",
        "--max-output-len", "9", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    results = ran.json["results"]
    assert [r["lookahead"] for r in results] == [[2, 2, 2], [1, 1, 0], [3, 3, 3]]
    assert [len(r["output_ids"]) for r in results] == [3, 9, 9]
    assert results[0]["output_ids"] == results[2]["output_ids"][:3]
    assert results[1]["output_ids"] != results[2]["output_ids"]


def test_more_prompts_than_places_with_mixed_triples_equal_single_runs(engine: Path) -> None:
    texts = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    triples = ["4,3,4", "1,1,0", "2,3,2", "4,2,1", "3,3,4", "1,3,4"]
    args = ("run", "--engine-dir", engine, "--max-output-len", "24", "--json")
    together = trtla(*args, "--input-text", *texts, "--request-lookahead", *triples)
    assert together.code == 0, together.err
    for text, result in zip(texts, together.json["results"], strict=True):
        alone = trtla(*args, "--input-text", text, "--no-lookahead")
        assert alone.json["results"][0]["output_ids"] == result["output_ids"]
        assert alone.json["results"][0]["lookahead"] == [1, 1, 0]


def test_no_tokenizer(bare_engine: Path) -> None:
    args = ("run", "--engine-dir", bare_engine, "--input-file", "-")
    ran = trtla(*args, "--json", stdin='{"input_ids": [1, 2, 3]}')
    assert ran.code == 0, ran.err
    assert ran.json["results"][0]["text"] is None
    assert ran.json["results"][0]["input_text"] is None
    shown = trtla(*args, stdin='{"input_ids": [1, 2, 3]}')
    assert 'Input [Text 0]: "1 2 3"' in shown.out
    streamed = trtla(*args, "--stream", stdin='{"input_ids": [1, 2, 3]}')
    assert streamed.code == 0, streamed.err
    refused(trtla("run", "--engine-dir", bare_engine, "--input-text", "hi"), 2, "tokenizer")


def test_streamed_json_chunks_make_the_document(engine: Path) -> None:
    ran = trtla(
        "run", "--engine-dir", engine, "--input-text", "ab", "cd", "--stream", "--json",
        "--temperature", "1",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    *chunks, document = [json.loads(line) for line in ran.out.splitlines()]
    for result in document["results"]:
        own = [c for c in chunks if c["index"] == result["index"]]
        assert "".join(c["text"] for c in own) == result["text"]
        assert [i for c in own for i in c["token_ids"]] == result["output_ids"]
        assert sum(c["accepted"] for c in own) == result["accepted"]
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == [result["finish_reason"]]


def test_colours_mark_accepted_tokens_and_change_no_letter(engine: Path) -> None:
    import click

    args = ("run", "--engine-dir", engine, "--input-text", "aaaa", "--max-output-len", "48", "-q",
            "--lookahead", "4,3,4")  # fmt: skip
    plain, coloured = trtla(*args), trtla(*args, "--color", "always")
    assert "\x1b[32m" in coloured.out
    assert click.unstyle(coloured.out) == click.unstyle(plain.out)


def test_a_processor_writes_what_its_filters_write(engine: Path) -> None:
    args = ("run", "-m", engine, "-p", "def f(", "-n", "12", "--seed", "3", "--json")
    texts = set()
    for processor, *filters in (
        ("greedy", "--temperature", "0"),
        ("multinomial:1.5", "--temperature", "1.5"),
        ("topk:2:5", "--temperature", "2", "--top-k", "5"),
        ("nucleus:2:0.4", "--temperature", "2", "--top-p", "0.4"),
    ):
        named, spelled = trtla(*args, "--processor", processor), trtla(*args, *filters)
        assert named.code == spelled.code == 0, named.err
        assert named.json["results"] == spelled.json["results"]
        texts.add(tuple(named.json["results"][0]["output_ids"]))
    assert len(texts) == 4


def test_check_lossless(engine: Path) -> None:
    args = ("run", "--engine-dir", engine, "--input-text", "ab", "cd", "--check-lossless")
    ran = trtla(*args, "--temperature", "1.2", "--seed", "5", "--json")
    assert ran.code == 0, ran.err
    assert [r["lossless"] for r in ran.json["results"]] == [True, True]
    assert [r["divergence"] for r in ran.json["results"]] == [None, None]
    assert ran.json["plain_stats"]["tokens_per_step"] == 1.0
    shown = trtla(*args)
    assert "Lossless [Text 1]: equal to plain decoding" in shown.out
    assert "| speed-up | as plain |" in shown.out


def test_a_stop_text_ends_the_output(engine: Path) -> None:
    args = ("run", "--engine-dir", engine, "--input-text", "ab", "--json", "--max-output-len", "24")
    whole = trtla(*args).json["results"][0]["text"]
    stop = whole[5:7]
    cut = trtla(*args, "--stop", stop, "not there").json["results"][0]
    assert cut["finish_reason"] == "stop_words"
    assert cut["text"] == whole[: whole.index(stop)]


@pytest.mark.parametrize("more", [(), ("--stream",), ("--check-lossless",), ("--num-beams", "2")])
def test_quiet_leaves_the_bare_texts(engine: Path, more: tuple[str, ...]) -> None:
    args = ("run", "-m", engine, "-p", "ab", "cd", "-n", "4", *more)
    ran = trtla(*args, "-q")
    document = json.loads(trtla(*args, "--json").out.splitlines()[-1] if "--stream" in more
                          else trtla(*args, "--json").out)  # fmt: skip
    results = document["results"]
    texts = [one["text"] for prompt in results for one in prompt.get("beams", [prompt])]
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "".join(f"{text}\n" for text in texts)


def ends_at_once(model: Path, folder: Path, prompt: str) -> Path:
    """A copy of the model that takes its first token after the prompt for the end."""
    first = trtla("run", "--engine-dir", model, "--input-text", prompt, "--json").json
    shutil.copytree(model, folder)
    for name in ("config.json", "generation_config.json"):
        said = json.loads((folder / name).read_text())
        said["eos_token_id"] = first["results"][0]["output_ids"][0]
        (folder / name).write_text(json.dumps(said))
    return folder


def test_an_empty_output_comes_with_its_reason(model: Path, tmp_path: Path) -> None:
    folder = ends_at_once(model, tmp_path / "model", "one")
    said = "note: text 0 is empty: the model ended it at once"
    flags = ("run", "--engine-dir", folder, "--input-text", "one")
    ran = trtla(*flags)
    assert 'Output [Text 0 Beam 0]: ""' in ran.out
    assert f"{said}\n" in ran.err
    assert "is empty" not in trtla(*flags, "--quiet").err
    ran = trtla(*flags, "two", "--stream")
    assert f"{said}\n" in ran.err
    assert "text 1 is empty" not in ran.err


@pytest.mark.parametrize("command", there("run", "explain"))
def test_the_number_of_threads_is_set(engine: Path, command: str) -> None:
    before = num_threads()
    wanted = 1 if before > 1 else 2
    try:
        ran = trtla(command, "--engine-dir", engine, "--input-text", "a", "--threads", str(wanted))
        assert ran.code == 0, ran.err
        assert num_threads() == wanted
    finally:
        set_threads(before)
