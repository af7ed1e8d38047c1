"""What a generation_config.json asks for and nobody applies is named in one note."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import there, trtla
from trtla import LLM, SamplingParams
from trtla.formats.folder import unapplied
from trtla.formats.model_folder import ModelFolder

PROMPT = ("--input-text", "abcabc", "--max-output-len", "8")


def asking(folder: Path, more: dict[str, Any]) -> Path:
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": 2, "max_new_tokens": 512, **more}))
    return folder


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "own"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8,
             "repetition_penalty": 1.05},
            "temperature 0.7, top_k 20, top_p 0.8, repetition_penalty 1.05, which trtla applies "
            "where it is asked for alone: --temperature 0.7 --top-k 20 --top-p 0.8 "
            "--repetition-penalty 1.05, or the fields of these names",
        ),
        ({"do_sample": True}, "temperature 1.0, which"),
        ({"temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.1},
         "asks for repetition_penalty 1.1, which"),
        ({"no_repeat_ngram_size": 3}, "asks for no_repeat_ngram_size 3, which trtla has not"),
        ({"num_beams": 4, "typical_p": 0.5}, "--num-beams 4, or the fields of these names; and for "
         "typical_p 0.5, which trtla has not"),
    ],
)  # fmt: skip
def test_what_is_not_applied_is_named(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    found = unapplied(ModelFolder(asking(tmp_path, more)))
    assert found is not None
    assert f"{tmp_path.name}/generation_config.json asks for " in found
    assert said in found


@pytest.mark.parametrize(
    "more",
    [
        {}, {"do_sample": False, "temperature": 0.6, "top_k": 50}, {"repetition_penalty": 1.0},
        {"num_beams": 1, "typical_p": 1.0, "bad_words_ids": None, "suppress_tokens": []},
        {"repetition_penalty": "1.1"},
    ],
)  # fmt: skip
def test_what_asks_for_nothing_is_not(tmp_path: Path, more: dict[str, Any]) -> None:
    assert unapplied(ModelFolder(asking(tmp_path, more))) is None
    (tmp_path / "generation_config.json").write_text("[")
    assert unapplied(ModelFolder(tmp_path)) is None


def command(
    name: str, folder: Path, *more: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """In a process of its own: logging prints there as it does for people."""
    line = [sys.executable, "-m", "trtla", name, "-m", str(folder), *more]
    ran = subprocess.run(line, input=stdin, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.mark.deep
def test_commands_say_it_once(folder: Path) -> None:
    asking(folder, {"repetition_penalty": 1.7})
    said = "note: own/generation_config.json asks for repetition_penalty 1.7"
    assert command("run", folder, *PROMPT).stderr.count(said) == 1
    for name in there("chat"):
        assert command(name, folder, "-n", "4", stdin="ab\n").stderr.count(said) == 1
    assert said not in command("run", folder, *PROMPT, "-q").stderr


def test_the_flags_that_are_named_give_the_same(folder: Path) -> None:
    asking(folder, {"repetition_penalty": 1.7})
    flags = ("--repetition-penalty", "1.7", "--logit-bias", "5:2.5,7:-100")
    ran = trtla("run", "-m", folder, *PROMPT, "--json", *flags)
    own = SamplingParams(max_output_len=8, repetition_penalty=1.7, logit_bias={5: 2.5, 7: -100})
    with LLM(folder) as llm:
        (done,) = llm.generate(["abcabc"], own)
    assert ran.json["results"][0]["output_ids"] == list(done.output_ids)
    lines = folder / "p.jsonl"
    given = {"repetition_penalty": 1.7, "logit_bias": {"5": 2.5, "7": -100}}
    lines.write_text(json.dumps({"text": "abcabc", **given}))
    (folder / "preset.yaml").write_text("repetition_penalty: 1.7\nlogit_bias: '5:2.5,7:-100'\n")
    for more in (("--input-file", lines), (*PROMPT[:2], "--config", folder / "preset.yaml")):
        again = trtla("run", "-m", folder, *PROMPT[2:], *more, "--json")
        assert again.code == 0, again.err
        assert again.json["results"][0]["output_ids"] == list(done.output_ids)


def test_python_has_it_as_a_warning_of_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LLM(asking(folder, {"repetition_penalty": 1.7})):
        said = [one.message for one in caplog.records if "generation_config" in one.message]
    assert len(said) == 1
