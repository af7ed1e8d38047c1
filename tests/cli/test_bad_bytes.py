"""Files and streams that are not what they should be: exit code 2, one sentence, one hint."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.command import ROOT, Ran, known, needs, refused, trtla
from tests.support.encoder_decoders import make_t5

Commands = Callable[[Path], list[Ran]]


def run(folder: Path, *args: str | Path, stdin: str = "") -> Ran:
    return trtla("run", "--engine-dir", folder, "--max-output-len", "3", *args, stdin=stdin)


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "model"))


def change(folder: Path, name: str = "config.json", **keys: Any) -> None:
    data = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**data, **keys}))


def refused_everywhere(folder: Path, out: Path, *parts: str) -> None:
    """Refused by all commands that read a model; `inspect` may list it as a problem."""
    refused(trtla("convert", "--model-dir", folder, "--output-dir", out), 2, *parts)
    refused(trtla("build", "--checkpoint-dir", folder, "--output-dir", out), 2, *parts)
    refused(run(folder, "--input-text", "a"), 2, *parts)
    for line in known(("inspect", folder, "--json")):
        ran = trtla(*line)
        assert ran.code in (2, 3), ran
        assert "bug in trtla" not in ran.out
        assert len(ran.json.get("problems", ())) <= 10, ran
    assert not out.exists()


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('"vocab_size": 258', '"vocab_size": ' + "9" * 5000, "digits"),
        ('"vocab_size": 258', '"vocab_size": ' + "9" * 4000, "vocab_size"),
        ('"vocab_size": 258', '"vocab_size": 99999999999', "vocab_size"),
        ('"num_hidden_layers": 2', '"num_hidden_layers": 100000000', "num_hidden_layers"),
        ('"num_hidden_layers": 2', '"num_hidden_layers": 9999', "num_hidden_layers"),
        ('"model_type"', '"a": ' + "[" * 100_000 + '"model_type"', "levels"),
        ('"model_type"', '"a": ' + "[" * 200 + "]" * 200 + ', "model_type"', "levels"),
    ],
)
def test_a_config_that_no_reader_should_take(
    old: str, new: str, part: str, copy: Path, tmp_path: Path
) -> None:
    text = (copy / "config.json").read_text()
    assert old in text
    (copy / "config.json").write_text(text.replace(old, new))
    refused_everywhere(copy, tmp_path / "out", part)


@pytest.mark.parametrize("state", [{"a": torch.eye(2).to_sparse()}, [1]])
def test_a_bin_file_of_something_else(state: object, copy: Path, tmp_path: Path) -> None:
    (copy / "model.safetensors").unlink()
    torch.save(state, copy / "pytorch_model.bin")
    refused_everywhere(copy, tmp_path / "out", "pytorch_model.bin")


HEADERS: tuple[Any, ...] = (
    "[" * 100_000,
    "9" * 5000,
    [],
    {"a": 1},
    {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}},
    {"a": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}},
    {"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}},
    {"a": {"dtype": "F32", "shape": [True, 2], "data_offsets": [0, 8]}},
    {"a": {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]}},
    {"a": {"dtype": "F32", "shape": [10**3000, 10**3000], "data_offsets": [0, 4 * 10**4000]}},
    {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
    {"a": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}},
)


@pytest.mark.parametrize("header", HEADERS)
def test_a_safetensors_header_of_nonsense(header: Any, copy: Path, tmp_path: Path) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(8)
    (copy / "model.safetensors").write_bytes(data)
    refused_everywhere(copy, tmp_path / "out", "model.safetensors")


def test_tensors_that_overlap(copy: Path, tmp_path: Path) -> None:
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    text = json.dumps({"a": one, "b": one}).encode()
    (copy / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    refused_everywhere(copy, tmp_path / "out", "model.safetensors")


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"num_layers": 10**8}, "num_layers"),
        ({"num_decoder_layers": 9999}, "num_decoder_layers"),
        ({"num_decoder_layers": 3}, "decoder.block.2"),
        ({"d_ff": 49}, "shape"),
    ],
)
def test_an_encoder_decoder_whose_weights_are_others(
    keys: dict[str, int], part: str, tmp_path: Path
) -> None:
    """transformers would make the missing layers up."""
    folder = make_t5(tmp_path / "t5")
    change(folder, **keys)
    refused(run(folder, "--input-text", "a"), 2, str(folder), part)


def test_texts_that_are_no_utf8_are_refused(engine: Path) -> None:
    """Bytes of the command line and of stdin come as halves of surrogate pairs."""
    refused(run(engine, "--input-text", "caf\udce9"), 2, "text 0 is not UTF-8", r"\udce9")
    refused(run(engine, "--input-text", "a", "--stop", "\udce9"), 2, "stop is not UTF-8")
    refused(run(engine, "--input-text", "-", stdin="a\udce9"), 2, "text 0 is not UTF-8")
    refused(run(engine, "--input-file", "-", stdin="a\nb\udce9\n"), 2, "line 2 of stdin is not")


def test_folders_whose_names_are_no_utf8(model: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "caf\udce9", tmp_path / "\udce9"
    shutil.copytree(model, folder)
    ran = trtla("build", "--checkpoint-dir", folder, "--output-dir", out, "--dtype", "float32")
    assert ran.code == 0, ran.err
    ran = run(out, "--input-text", "a", "--json")
    assert ran.code == 0, ran.err


def process(command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """`python -m trtla` behind a shell, which can close streams."""
    line = f'exec "{sys.executable}" -m trtla {command}'
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8:strict"}
    return subprocess.run(["bash", "-c", line], input=stdin, capture_output=True, env=env)


def test_stdin_that_is_no_utf8_is_refused(engine: Path) -> None:
    done = process(f'run --engine-dir "{engine}" --input-text -', b"caf\xe9\n")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(b"error: text 0 is not UTF-8")


@pytest.mark.deep(first=1)
@pytest.mark.parametrize(
    ("command", "code"),
    [("inspect {} >&-", 0), ("inspect {}/absent 2>&-", 2), ("run --engine-dir {} <&-", 2)],
)
@needs("inspect")
def test_closed_streams_are_no_error(command: str, code: int, engine: Path) -> None:
    done = process(command.format(engine))
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"bug in trtla" not in done.stderr


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_paths_that_no_system_takes(path: str, engine: Path, tmp_path: Path) -> None:
    """They come from YAML and JSON: a command line holds no NUL."""
    out = tmp_path / "out"
    for args in known(
        ("run", "--engine-dir", path, "--input-text", "a"),
        ("run", "--engine-dir", engine, "--input-text", "a", "--drafter", f"draft:{path}"),
        ("convert", "--model-dir", path, "--output-dir", out),
        ("build", "--checkpoint-dir", engine, "--output-dir", path),
        ("inspect", path),
    ):
        refused(trtla(*args), 2)
    assert not out.exists()


def test_control_characters_of_a_value_are_shown_not_sent(engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "a", "drafter": "draft:\\u0000\\u001b[2J\\n"}\n')
    refused(run(engine, "--input-file", path), 2, r"\x00\x1b[2J does not exist")
