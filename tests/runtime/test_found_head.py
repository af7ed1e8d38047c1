"""A trained head beside its model drafts by itself, and nothing beside a model keeps it shut."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from tests.support.heads import fitting, write_head
from trtla import LLM, DrafterSettings, SamplingParams, UsageError
from trtla.formats.gguf.header import MADE_OF
from trtla.formats.heads.beside import head_beside
from trtla.formats.hf_config import read_hf_config
from trtla.formats.model import Model
from trtla.formats.model_folder import ModelFolder
from trtla.llm.found_head import with_found_head
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import AUTOREGRESSIVE

SETTINGS = DrafterSettings(gamma=8, ngram_order=4)


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy of the shipped model."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def test_a_found_head_drafts_with_the_settings_that_were_given(folder: Path) -> None:
    write_head(folder / "head")
    with LLM(folder, drafter=SETTINGS, find_head=True) as llm:
        assert llm.limits.drafter.head == str(folder / "head")
        assert (llm.limits.drafter.gamma, llm.limits.drafter.ngram_order) == (8, 4)
        (done,) = llm.generate("import os", SamplingParams(max_tokens=12))
        assert "head" in (done.stats.sources or {})


def test_a_head_that_needs_the_models_lm_head_leaves_ranks_alone(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_head(folder / "head", draft_vocab_size=2048, lm_head=False)
    engine = Model.at(str(folder)).open(AUTOREGRESSIVE)
    options = ExecutorOptions(find_head=True)
    assert with_found_head(engine, options).drafter.head is not None
    options = ExecutorOptions(find_head=True, tp_size=2)
    assert with_found_head(engine, options).found_head is None
    assert "has no lm_head" in caplog.messages[-1]


def test_all_paths_of_a_head_name_the_one_that_is_loaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = write_head(tmp_path / "its head")
    (tmp_path / "link").symlink_to(head)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    others = (str(head), "~/its head", "./its head/", "link")
    with LLM(folder, drafter="head:its head", heads=others) as llm:
        assert llm.limits.heads == ("its head",)
        for name in others:
            (done,) = llm.generate(
                "import os", SamplingParams(max_tokens=12), drafter=f"head:{name}"
            )
            assert "head" in (done.stats.sources or {})
        assert [*llm.stats().heads] == ["its head"]
        with pytest.raises(UsageError, match=r"the head ~/other, which is not loaded"):
            llm.generate("import os", drafter="head:~/other")
    with LLM(folder, drafter="head:~/its head") as llm:
        assert llm.limits.drafter.head == "~/its head"


@pytest.mark.parametrize("kind", ["head", "draft"])
def test_a_path_that_is_too_long_is_refused(kind: str, folder: Path) -> None:
    for path in ("x" * 5000, "x" * 300):
        with pytest.raises(UsageError, match=r"xxx\.\.\.: File name too long") as caught:
            LLM(folder, drafter=f"{kind}:{path}")
        assert caught.value.hint == "check the path"


def test_what_is_no_file_of_a_head_beside_a_gguf_file_is_passed_over(
    tiny_llama: Path, tmp_path: Path
) -> None:
    config = read_hf_config(tiny_llama)[0]
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / MADE_OF).write_text(json.dumps({"path": str(tmp_path / "model.gguf")}))
    (tmp_path / "model.gguf").touch()
    head = write_head(tmp_path / "z.gguf", "gguf", **fitting(config))
    assert head_beside(ModelFolder(cache), config) == head
    os.mkfifo(tmp_path / "pipe.gguf")  # opening it would wait indefinitely
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "gone.gguf").symlink_to("nowhere")
    key = b"general.architecture"
    endless = head.read_bytes()[:24] + struct.pack("<Q", 2**64 - 1) + key
    (tmp_path / "endless.gguf").write_bytes(endless)
    assert head_beside(ModelFolder(cache), config) == head
