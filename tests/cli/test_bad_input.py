"""Bad input: exit 2 (or 1), one sentence with the value, one hint, nothing written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import Ran, known, needs, process, refused, there, trtla


def run(engine: Path, *args: str | Path, stdin: str = "") -> Ran:
    return trtla("run", "--engine-dir", engine, *args, stdin=stdin)


def build(checkpoint: Path, output: Path, *args: str | Path) -> Ran:
    return trtla("build", "--checkpoint-dir", checkpoint, "--output-dir", output, *args)


@pytest.mark.parametrize(
    ("code", "flags", "parts"),
    [
        *(
            (2, [f"--lookahead={triple}"], ["--lookahead", part])
            for triple, part in (
                ("7,7", "'7,7'"), ("a,b,c", "'a,b,c'"), ("7.5,7,7", "'7.5,7,7'"), ("", "''"),
                ("0,7,7", "window=0"), ("7,0,7", "ngram=0"), ("7,7,-1", "verification=-1"),
                ("7,1,7", "ngram=1"), ("[1,2,3", "'[1,2,3'"), ("7,7,99999999999", "99999999999"),
            )
        ),
        (2, ["--lookahead", "4,3,4", "--max_draft_len", "20"], ["20", "15"]),
        (2, ["--backend", "onnx"], ["onnx", "torch"]),
        (2, ["--max-seq-len", "100k"], ["100000"]),
        (1, ["--backend", "tensorrt-llm"], ["torch"]),
        (2, ["--dtype", "fp8"], ["fp8", "trtla convert"]),
        (2, ["--tokenizer-dir", "."], ["--tokenizer-dir goes with --from-existing"]),
    ],
)  # fmt: skip
def test_builds(
    code: int, flags: list[str], parts: list[str], checkpoint: Path, tmp_path: Path
) -> None:
    refused(build(checkpoint, tmp_path / "out", *flags), code, *parts)
    assert not (tmp_path / "out").exists()


TEXT, THREE = ["--input-text", "a"], ["--input-text", "a", "b", "c"]


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ([*TEXT, "--lookahead", "7,7,7"], ["7,7,7", "83", "max_draft_len 15"]),
        ([*THREE[:-1], "--request-lookahead", "1,1,0", "9,3,4"], ["text 1", "9,3,4", "4,3,4"]),
        ([*THREE, "--request-lookahead", "1,1,0", "4,3,4"], ["2 triples for 3 prompts"]),
        ([*TEXT, "--no-lookahead", "--request-lookahead", "2,2,2"], ["--no-lookahead"]),
        ([*TEXT, "--no-lookahead", "--lookahead", "2,2,2"], ["--no-lookahead and --lookahead ex"]),
        ([*TEXT, "--drafter", "none", "--lookahead", "2,2,2"], ["--drafter none and --lookahead"]),
        (["--input-text", "x" * 200], ["text 0", "max_input_len 128"]),
        (["--input-text", "x" * 100, "--max-output-len", "200"], ["200", "max_seq_len 256"]),
        ([], ["no prompt"]),
        (["--input-text", ""], ["text 0", "empty"]),
        (["--input-file", "-", "--input-text", "-"], ["stdin"]),
        (["--input-file", "absent.jsonl"], ["absent.jsonl"]),
        *(
            ([*TEXT, flag, value], [value])
            for flag, value in (
                ("--device", "tpu"),
                ("--temperature", "-0.5"), ("--temperature", "nan"), ("--top-k", "-1"),
                ("--top-p", "-0.1"), ("--top-p", "1.5"), ("--dtype", "int4"),
            )
        ),
        ([*TEXT, "--seed", "-3"], ["seed"]),
        ([*TEXT, "--threads", "100000"], ["threads", "100000"]),
        ([*TEXT, "--stop", ""], ["error: stop is empty", "hint: --stop must"]),
        *(
            ([*TEXT, flag, "0"], [flag, "'0' is not a whole number of at least 1"])
            for flag in ("--threads", "--allotted-time-ms", "--max-batch-size")
        ),
        *(
            ([*TEXT, "--logit-bias", value], [value, "each once, with numbers such as 17:-5"])
            for value in ("5:3,5:4", '{"5":3}')
        ),
        ([*TEXT, "--logit-bias", "99999:3"], ["token id 99999, outside", "from 0 to 257"]),
        (["--trtllm-executor"], ["option '--trtllm-executor' requires an argument",
                                 "see trtla run --help"]),
        (["--parse-special=yes"], ["option '--parse-special' does not take a value",
                                   "see trtla run --help"]),
        ([*TEXT, "--processor", "beam"], ["beam", "nucleus"]),
        ([*TEXT, "--processor", "nucleus:1:2"], ["top_p is 2"]),
        ([*TEXT, "--processor", "greedy", "--top-k", "3"], ["--processor", "--top-k"]),
        ([*TEXT, "--lookahead", "automatic"], ["--lookahead 'automatic' is not a triple"]),
        ([*TEXT, "--lookahead-cells", "both"], ["--lookahead-cells"]),
        ([*TEXT, "--config", "absent.yaml"], ["absent.yaml"]),
    ],
)  # fmt: skip
def test_runs(flags: list[str], parts: list[str], engine: Path) -> None:
    ran = run(engine, *flags)
    refused(ran, 2, *parts)
    assert "8k" not in ran.err  # only numbers of tokens take a k


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (("--dtype", "fp16"), "did you mean float16? see trtla run --help-all"),
        (("--ngram-kind", "onelevl"), "did you mean onelevel? see trtla run --help-all"),
        (("--threads", "two"), "see trtla run --help-all"),
        (("--thread", "2"), "did you mean --threads? see trtla run --help-all"),
        (("--temperature", "hot"), "see trtla run --help"),
        (
            ("--lookahead", "none"),
            "write auto, or window,ngram,verification, such as 7,7,7; --no-lookahead decodes "
            "without drafts",
        ),
        (("--head", "h"), "name it by --drafter head:PATH; see trtla run --help-all"),
        (("--draft-model", "d"), "name it by --drafter draft:PATH; see trtla run --help-all"),
    ],
)
def test_the_hint_names_the_value_and_the_page_that_has_the_flag(
    flags: tuple[str, ...], hint: str
) -> None:
    ran = trtla("run", *flags)
    refused(ran, 2)
    assert ran.err.splitlines()[-1] == f"hint: {hint}"


def test_a_wrong_switch_of_a_preset_is_told_the_right_values(engine: Path, tmp_path: Path) -> None:
    preset = tmp_path / "preset.yaml"
    preset.write_text("chat: maybe\n")
    ran = run(engine, *TEXT, "--config", str(preset))
    refused(ran, 2, "'maybe' is not a valid boolean (from config", "hint: use true or false;")


@pytest.mark.parametrize(
    ("command", "flag"),
    known(
        ("build", "--max-seq-len"),
        ("summarize", "--max-input-len"),
        ("bench", "--prompt-len"),
        ("run", "--max-output-len"),
    ),
)
def test_numbers_of_tokens_are_said_to_take_a_k(command: str, flag: str) -> None:
    for value in ("0", "many"):
        refused(trtla(command, flag, value), 2, flag, f"{value!r} is not", "such as 512 or 8k")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{not json", "not JSON"),
        ("\0", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ('{"text": "a", "tempreature": 1}', '"tempreature"'),
        ('{"text": "a", "input_ids": [1]}', "either"),
        ('{"temperature": 1}', "either"),
        ('{"text": 5}', "hint: correct the line"),
        ('{"text": "a", "temperature": NaN}', "NaN"),
        ('{"text": "a", "temperature": -1}', "temperature is -1"),
        ('{"text": "a", "temperature": "0.5"}', "0.5"),
        ('{"text": "a", "lookahead": [7, 1, 7]}', "ngram=1"),
        ('{"text": "a", "lookahead": [7, 7]}', "triple"),
        ('{"text": "a", "lookahead": [9, 9, 9]}', "9,9,9"),
        ('{"text": "a", "lookahead": [7, 7, 1e99]}', "must be whole numbers"),
        ('{"text": "a", "lookahead": 7}', "lookahead is 7"),
        ('{"text": "a", "max_output_len": 0}', "max_output_len is 0"),
        ('{"input_ids": [1, true]}', "input_ids.1"),
        ('{"input_ids": "12"}', "input_ids"),
        ('{"input_ids": []}', "empty"),
        ('{"input_ids": [5, 999]}', "token id 999"),
        ('{"text": ' + "[" * 200_000, "levels"),
        ('{"text": "a\\ud800b"}', "surrogate"),
        ('{"text": "a", "stop": "\\ud800"}', "surrogate"),
        ('{"text": "a", "top_k": ' + "9" * 5000 + "}", "digits"),
        ('{"text": "a", "max_output_len": ' + "9" * 4000 + "}", "max_output_len"),
        ('{"text": "a", "seed": 9223372036854775808}', "seed is 9223372036854775808"),
        ('{"text": "a", "temperature": ' + "9" * 400 + "}", "temperature"),
    ],
)
def test_a_bad_line_names_its_number(engine: Path, tmp_path: Path, line: str, part: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "fine"}\n\n' + line + "\n")
    refused(run(engine, "--input-file", path), 2, "line 3 of", "prompts.jsonl", part)


def test_a_mistyped_key_of_a_line_is_guessed(engine: Path) -> None:
    for wrong, meant in (("tempreature", "temperature"), ("max_output_length", "max_output_len")):
        ran = run(engine, "--input-file", "-", stdin=f'{{"text": "a", "{wrong}": 1}}')
        refused(ran, 2, f'unknown key "{wrong}"', f"hint: did you mean {meant}? ")
    ran = run(engine, "--input-file", "-", stdin='{"text": "a", "colour": 1}')
    refused(ran, 2, "colour")
    assert "did you mean" not in ran.err


@pytest.mark.parametrize(
    ("name", "data", "part"),
    [
        ("empty.txt", b"\n\n", "empty.txt"),
        ("data.csv", b"a,b\n", "data.csv"),
        ("latin.txt", b"caf\xe9\n", "UTF-8"),
    ],
)
def test_files_that_cannot_be_read(
    name: str, data: bytes, part: str, engine: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    refused(run(engine, "--input-file", tmp_path / name), 2, part)


def test_a_line_of_articles_is_to_be_corrected(engine: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text('{"article": 7, "highlights": "a"}\n')
    ran = trtla("summarize", "--engine-dir", engine, "--dataset", own)
    refused(ran, 2, "line 1 of", "hint: correct the line")


def test_folders_of_another_kind(engine: Path, checkpoint: Path, tmp_path: Path) -> None:
    refused(run(tmp_path / "absent", "--input-text", "a"), 2, "absent")
    refused(run(tmp_path, "--input-text", "a"), 2, "config.json")
    refused(run(checkpoint, "--input-text", "a"), 2, "checkpoint", "trtla build")
    refused(build(engine, tmp_path / "out"), 2, "is an engine already")
    for command in there("inspect", "doctor"):
        refused(trtla(command, tmp_path), 2, "config.json")
        refused(trtla(command, tmp_path / "absent"), 2, "absent")
    refused(trtla("build", "--output-dir", tmp_path / "out"), 2, "--checkpoint-dir")
    refused(trtla("build", "--checkpoint-dir", checkpoint), 2, "--output-dir")


def test_a_target_that_is_not_empty_or_cannot_be(
    checkpoint: Path, model: Path, tmp_path: Path
) -> None:
    target = tmp_path / "engine"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    assert build(checkpoint, target).code == 0
    refused(build(checkpoint, target), 2, f"{target} is not empty", "--force")
    ran = trtla("convert", "--model-dir", model, "--output-dir", target)
    refused(ran, 2, f"{target} is not empty", "--force")
    assert build(checkpoint, target, "--force").code == 0
    assert (target / "mine.txt").read_text() == "mine"
    (tmp_path / "mine.txt").touch()
    ran = build(checkpoint, tmp_path / "mine.txt" / "engine")
    assert ran.code in (1, 2)
    refused(ran, ran.code, "mine.txt")


@pytest.mark.parametrize(
    ("name", "old", "new", "part"),
    [
        ("config.json", '"rotary_base": 10000.0', '"rotary_base": NaN', "NaN"),
        ("trtla.json", '"format_version": ', '"format_version": 99', "99"),
    ],
)
def test_an_engine_whose_files_are_others(
    name: str, old: str, new: str, part: str, engine: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(engine, tmp_path / "engine"))
    text = (broken / name).read_text()
    assert old in text
    (broken / name).write_text(text.replace(old, new))
    refused(run(broken, "--input-text", "a"), 2, part)


def test_a_triple_of_a_preset_is_not_named_as_a_flag(engine: Path, tmp_path: Path) -> None:
    preset = tmp_path / "preset.yaml"
    preset.write_text("lookahead: [7, 7, 7]\n")
    ran = run(engine, "--input-text", "a", "--config", preset)
    refused(ran, 2, "lookahead 7,7,7 needs max_draft_len 83", "leave lookahead unset")
    assert "omit --lookahead" not in ran.err


def test_errors_are_json_when_asked(engine: Path) -> None:
    for args in (["--input-text", ""], ["--no-such-flag"], ["--lookahead", "7,7"]):
        ran = run(engine, "--json", *args)
        assert ran.code == 2
        assert set(ran.json) == {"error"}
        assert set(ran.json["error"]) == {"message", "hint", "type"}
        assert ran.json["error"]["type"] == "UsageError"
        assert ran.err == ""


@needs("inspect")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_an_error_of_stdout_itself_is_one_error_on_stderr(engine: Path) -> None:
    for args in ((), ("--json",)):
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "trtla", "inspect", str(engine), *args]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith("error: No space left on device\nhint: ")
        assert done.stderr.count("\n") == 2


def test_verbose_shows_the_traceback(engine: Path) -> None:
    ran = run(engine, "--input-text", "x" * 200, "--verbose")
    assert ran.code == 2
    assert "Traceback" in ran.err
    assert "error: " in ran.err


def test_an_unexpected_error_is_called_a_bug(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr("trtla.data.prompts.gather", broken)
    refused(run(engine, "--input-text", "a"), 1, "IndexError", "bug in trtla", "--verbose")


def test_the_same_in_a_process(engine: Path) -> None:
    done = process("run", "--engine-dir", engine, "--input-text", "x" * 200)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: text 0")


def test_no_input_is_written_over(engine: Path, model: Path, tmp_path: Path) -> None:
    ids, articles = tmp_path / "ids.csv", tmp_path / "articles.jsonl"
    ids.write_text("5,6,7\n")
    articles.write_text('{"article": "a b c", "highlights": "b"}\n')
    ran = run(engine, "--input-file", ids, "--output-csv", ids)
    refused(ran, 2, f"--output-csv {ids} is also the input")
    config = engine / "config.json"
    ran = run(engine, "--input-text", "a", "--output-csv", config)
    refused(ran, 2, f"--output-csv {config} is also the input")
    asked = ("--engine-dir", engine, "--hf-model-dir", model, "--dataset", articles)
    refused(trtla("summarize", *asked, "-o", articles), 2, f"--output {articles} is also the input")
    for file in (config, model / "config.json"):
        refused(trtla("summarize", *asked, "-o", file), 2, f"--output {file} is also the input")
    refused(trtla("summarize", *asked, "-o", tmp_path), 2, f"--output {tmp_path} is a folder")
    assert ids.read_text() == "5,6,7\n"
