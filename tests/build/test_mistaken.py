"""What is given for a model and is something else is called by its name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command import trtla

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 4976698672\n"
PAGE = "<!DOCTYPE html>\n<html><head><title>model at main</title></head></html>\n"


@pytest.mark.parametrize(
    ("content", "says"), [(POINTER, "git-lfs's pointer to a file"), (PAGE, "a web page")]
)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_what_stands_for_a_file_is_named(
    tiny_llama: Path, tmp_path: Path, name: str, content: str, says: str
) -> None:
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
    (folder / name).unlink()
    (folder / name).write_text(content)
    ran = trtla("run", "-m", folder, "-p", "a", "-n", "1")
    assert ran.code == 2
    assert f"{folder / name} is {says}" in ran.err


@pytest.mark.parametrize(("name", "content"), [("model.gguf", POINTER), ("m.gguf", PAGE)])
def test_what_stands_for_a_gguf_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    ran = trtla("run", "-m", tmp_path / name, "-p", "a")
    assert ran.code == 2
    assert ", not the file\n" in ran.err


def test_an_adapter_is_named(tmp_path: Path) -> None:
    said = {"base_model_name_or_path": "meta-llama/Llama-2-7b"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(said))
    ran = trtla("run", "-m", tmp_path, "-p", "a")
    assert ran.code == 2
    assert "holds an adapter for 'meta-llama/Llama-2-7b' (LoRA), not a model" in ran.err
    assert "merge_and_unload" in ran.err


def test_metas_original_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    (tmp_path / "consolidated.00.pth").write_text("")
    ran = trtla("run", "-m", tmp_path, "-p", "a")
    assert ran.code == 2
    assert "holds a model in Meta's original format" in ran.err


@pytest.mark.parametrize("inside", ["", "models--a--b"])
def test_the_root_of_a_cache_names_a_snapshot(tmp_path: Path, inside: str) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    ran = trtla("run", "-m", tmp_path / inside, "-p", "a")
    assert ran.code == 2
    assert "is a cache of the hub, not a model" in ran.err
    assert f"such as {snapshot}" in ran.err
