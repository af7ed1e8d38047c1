"""Bad input: exit 2 (or 1), one sentence with the value, one hint, nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command import Ran, process, refused, trtla


def run(engine: Path, *args: str | Path, stdin: str = "") -> Ran:
    return trtla("run", "--engine-dir", engine, *args, stdin=stdin)


def build(checkpoint: Path, output: Path, *args: str | Path) -> Ran:
    return trtla("build", "--checkpoint-dir", checkpoint, "--output-dir", output, *args)


@pytest.mark.parametrize(
    ("triple", "part"),
    [
        ("7,7", "'7,7'"),
        ("a,b,c", "'a,b,c'"),
        ("7.5,7,7", "'7.5,7,7'"),
        ("", "''"),
        ("0,7,7", "window=0"),
        ("7,0,7", "ngram=0"),
        ("7,7,-1", "verification=-1"),
        ("7,1,7", "ngram=1"),
        ("[1,2,3", "'[1,2,3'"),
        ("7,7,99999999999", "99999999999"),
    ],
)
def test_triples(checkpoint: Path, tmp_path: Path, triple: str, part: str) -> None:
    refused(build(checkpoint, tmp_path / "out", f"--lookahead={triple}"), 2, "--lookahead", part)
    assert not (tmp_path / "out").exists()


def test_default_triple_above_the_engines(engine: Path) -> None:
    ran = run(engine, "--input-text", "a", "--lookahead", "7,7,7")
    refused(ran, 2, "7,7,7", "83", "max_draft_len 15")


def test_request_triple_above_the_servers(engine: Path) -> None:
    ran = run(engine, "--input-text", "a", "b", "--request-lookahead", "1,1,0", "9,3,4")
    refused(ran, 2, "text 1", "9,3,4", "4,3,4")


def test_number_of_request_triples(engine: Path) -> None:
    ran = run(engine, "--input-text", "a", "b", "c", "--request-lookahead", "1,1,0", "4,3,4")
    refused(ran, 2, "2 triples for 3 prompts")


def test_no_lookahead_with_request_lookahead(engine: Path) -> None:
    ran = run(engine, "--input-text", "a", "--no-lookahead", "--request-lookahead", "2,2,2")
    refused(ran, 2, "--no-lookahead")


def test_max_draft_len_that_disagrees(checkpoint: Path, tmp_path: Path) -> None:
    ran = build(checkpoint, tmp_path / "out", "--lookahead", "4,3,4", "--max_draft_len", "20")
    refused(ran, 2, "20", "15")
    assert not (tmp_path / "out").exists()


def test_prompt_too_long(engine: Path) -> None:
    refused(run(engine, "--input-text", "x" * 200), 2, "text 0", "max_input_len 128")


def test_prompt_and_output_too_long(engine: Path) -> None:
    ran = run(engine, "--input-text", "x" * 100, "--max-output-len", "200")
    refused(ran, 2, "200", "max_seq_len 256")


def test_empty_prompts(engine: Path, tmp_path: Path) -> None:
    refused(run(engine), 2, "no prompt")
    refused(run(engine, "--input-text", ""), 2, "text 0", "empty")
    refused(run(engine, "--input-file", "-", stdin='{"input_ids": []}'), 2, "line 1", "empty")
    (tmp_path / "empty.txt").write_text("\n\n")
    refused(run(engine, "--input-file", tmp_path / "empty.txt"), 2, "empty.txt")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--max-output-len", "0"),
        ("--temperature", "-0.5"),
        ("--temperature", "nan"),
        ("--top-k", "-1"),
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--seed", "-3"),
        ("--max-output-len", "many"),
        ("--device", "tpu"),
        ("--dtype", "int4"),
        ("--max-batch-size", "0"),
        ("--stop", ""),
    ],
)
def test_values_out_of_range(engine: Path, flag: str, value: str) -> None:
    ran = run(engine, "--input-text", "a", flag, value)
    refused(ran, 2, flag.lstrip("-").replace("-", "_") if flag == "--seed" else value)


def test_a_token_outside_the_vocabulary(engine: Path) -> None:
    refused(run(engine, "--input-file", "-", stdin='{"input_ids": [5, 999]}'), 2, "999", "258")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{not json", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ('{"text": "a", "tempreature": 1}', '"tempreature"'),
        ('{"text": "a", "input_ids": [1]}', "either"),
        ('{"temperature": 1}', "either"),
        ('{"text": 5}', "5"),
        ('{"text": "a", "temperature": NaN}', "NaN"),
        ('{"text": "a", "temperature": -1}', "temperature is -1"),
        ('{"text": "a", "temperature": "0.5"}', "0.5"),
        ('{"text": "a", "lookahead": [7, 1, 7]}', "ngram=1"),
        ('{"text": "a", "lookahead": [7, 7]}', "triple"),
        ('{"text": "a", "lookahead": [9, 9, 9]}', "9,9,9"),
        ('{"text": "a", "max_output_len": 0}', "max_output_len is 0"),
        ('{"input_ids": [1, true]}', "input_ids.1"),
        ('{"input_ids": "12"}', "input_ids"),
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


def test_files_that_cannot_be_read(engine: Path, tmp_path: Path) -> None:
    refused(run(engine, "--input-file", tmp_path / "absent.jsonl"), 2, "absent.jsonl")
    (tmp_path / "data.csv").write_text("a,b\n")
    refused(run(engine, "--input-file", tmp_path / "data.csv"), 2, "data.csv")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    refused(run(engine, "--input-file", tmp_path / "latin.txt"), 2, "UTF-8")
    ran = run(engine, "--input-file", "-", "--input-text", "-")
    refused(ran, 2, "stdin")


def test_folders_of_another_kind(engine: Path, checkpoint: Path, tmp_path: Path) -> None:
    refused(run(tmp_path / "absent", "--input-text", "a"), 2, "absent")
    refused(run(tmp_path, "--input-text", "a"), 2, "config.json")
    refused(run(checkpoint, "--input-text", "a"), 2, "checkpoint", "trtla build")
    refused(build(engine, tmp_path / "out"), 2, "engine")


def test_a_target_that_is_not_empty(checkpoint: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    refused(build(checkpoint, tmp_path), 2, str(tmp_path))
    ran = trtla("convert", "--model-dir", model, "--output-dir", tmp_path)
    refused(ran, 2, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_another_architecture(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "model"
    shutil.copytree(model, broken)
    config = json.loads((broken / "config.json").read_text())
    config["architectures"], config["model_type"] = ["GPT2LMHeadModel"], "gpt2"
    (broken / "config.json").write_text(json.dumps(config))
    ran = trtla("convert", "--model-dir", broken, "--output-dir", tmp_path / "out")
    refused(ran, 2, "GPT2LMHeadModel")
    assert not (tmp_path / "out").exists()


def test_missing_weights_and_nan(model: Path, engine: Path, tmp_path: Path) -> None:
    bare = tmp_path / "model"
    bare.mkdir()
    shutil.copy(model / "config.json", bare)
    refused(trtla("convert", "--model-dir", bare, "--output-dir", tmp_path / "out"), 2, "model")
    broken = tmp_path / "engine"
    shutil.copytree(engine, broken)
    text = (broken / "config.json").read_text()
    (broken / "config.json").write_text(
        text.replace('"rotary_base": 10000.0', '"rotary_base": NaN')
    )
    refused(run(broken, "--input-text", "a"), 2, "NaN")


def test_an_engine_that_was_cut(engine: Path, tmp_path: Path) -> None:
    broken = tmp_path / "engine"
    shutil.copytree(engine, broken)
    weights = broken / "rank0.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    refused(run(broken, "--input-text", "a"), 2, "rank0.safetensors")


def test_an_engine_of_another_version(engine: Path, tmp_path: Path) -> None:
    broken = tmp_path / "engine"
    shutil.copytree(engine, broken)
    manifest = json.loads((broken / "trtla.json").read_text())
    manifest["format_version"] = 99
    (broken / "trtla.json").write_text(json.dumps(manifest))
    refused(run(broken, "--input-text", "a"), 2, "99")


def test_required_flags_and_wrong_choices(checkpoint: Path, tmp_path: Path) -> None:
    refused(trtla("build", "--output-dir", tmp_path / "o"), 2, "--checkpoint-dir")
    refused(build(checkpoint, tmp_path / "o", "--backend", "onnx"), 2, "onnx", "torch")
    refused(build(checkpoint, tmp_path / "o", "--max-seq-len", "100k"), 2, "100000")
    refused(build(checkpoint, tmp_path / "o", "--backend", "tensorrt-llm"), 1, "torch")
    assert not (tmp_path / "o").exists()


def test_permission_or_no_place_to_write(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = build(checkpoint, tmp_path / "file" / "engine")
    assert ran.code in (1, 2)
    refused(ran, ran.code, "file")


def test_a_flag_without_its_value_or_with_one_too_many_names_the_commands_help(
    engine: Path,
) -> None:
    for args, said in (
        (["--trtllm-executor"], "option '--trtllm-executor' requires an argument"),
        (["--parse-special=yes"], "option '--parse-special' does not take a value"),
    ):
        refused(run(engine, *args), 2, said, "see trtla run --help")


def test_what_is_wrong_with_a_logit_bias_is_said(engine: Path) -> None:
    for value in ("5:3,5:4", '{"5":3}'):
        ran = run(engine, "--input-text", "a", "--logit-bias", value)
        refused(
            ran, 2, value, "must be token ids, each once, with numbers such as 17:-5,42:2.5, from"
        )
    ran = run(engine, "--input-text", "a", "--logit-bias", "99999:3")
    refused(ran, 2, "token id 99999, outside the vocabulary", "use ids from 0 to 257")


def test_errors_are_json_when_asked(engine: Path) -> None:
    for args in (["--input-text", ""], ["--no-such-flag"], ["--lookahead", "7,7"]):
        ran = run(engine, "--json", *args)
        assert ran.code == 2
        assert set(ran.json) == {"error"}
        assert set(ran.json["error"]) == {"message", "hint", "type"}
        assert ran.json["error"]["type"] == "UsageError"
        assert ran.err == ""


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
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: text 0")


def test_the_hint_on_a_wrong_line_is_to_correct_it(engine: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text('{"text": 5, "article": 7, "highlights": "a"}\n')
    refused(run(engine, "--input-file", own), 2, "line 1 of", "hint: correct the line")
    ran = trtla("summarize", "--engine-dir", engine, "--dataset", own)
    refused(ran, 2, "line 1 of", "hint: correct the line")


def test_an_empty_stop_string_is_called_empty(engine: Path) -> None:
    refused(
        run(engine, "--input-text", "a", "--stop", ""),
        2,
        "error: stop is empty",
        "hint: --stop must",
    )


@pytest.mark.parametrize("flag", ["--threads", "--allotted-time-ms", "--max-batch-size"])
def test_only_numbers_of_tokens_are_said_to_take_a_k(engine: Path, flag: str) -> None:
    ran = run(engine, "--input-text", "a", flag, "0")
    refused(ran, 2, flag, "'0' is not a whole number of at least 1")
    assert "8k" not in ran.err
    for command, tokens in (("build", "--max-seq-len"), ("summarize", "--max-input-length"),
                            ("bench", "--prompt-len")):  # fmt: skip
        refused(trtla(command, tokens, "0"), 2, tokens, "such as 512 or 8k")
