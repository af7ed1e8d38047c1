"""An engine shares the bytes of its checkpoint's weights, and neither folder changes the other."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.support.fp8_models import to_fp8
from tests.support.gguf_models import write_gguf
from tests.support.models import Variant, make_model, save_model
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.errors import UsageError
from trtla.formats.checkpoint import Checkpoint, link_ranks, write_ranks
from trtla.formats.engine import open_engine
from trtla.formats.engine_limits import BuildSettings

SETTINGS = BuildSettings(LookaheadConfig(3, 3, 3))
WEIGHTS = "rank0.safetensors"
KEYS = {"hidden_size": 128, "intermediate_size": 128, "attention_bias": True, "mlp_bias": True}


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def hf(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    variant = Variant("links", {**KEYS, "tie_word_embeddings": request.param})
    return save_model(make_model(variant), variant, tmp_path_factory.mktemp("links") / "hf")


@pytest.fixture
def ckpt(hf: Path, tmp_path: Path) -> Path:
    return convert(hf, tmp_path / "ckpt")


def build(source: Path, target: Path, **keys: Any) -> Path:
    return build_engine(source, target, SETTINGS, **keys).path


def shared(folder: Path) -> bool:
    return (folder / WEIGHTS).stat().st_nlink > 1


def digest(engine: Path) -> str:
    manifest = open_engine(engine).manifest
    assert manifest is not None
    return manifest.source_sha256


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8", "int4", "w4a16_awq", "fp8"])
def test_an_engine_shares_its_checkpoints_bytes(kind: str, hf: Path, tmp_path: Path) -> None:
    """And it is the engine that is written where nothing can be linked, to the last bit."""
    if kind == "fp8":
        ckpt = to_fp8(hf, tmp_path / "ckpt", fp8_kv_cache=True)
    else:
        ckpt = convert(hf, tmp_path / "ckpt", dtype=kind)
    steps: list[tuple[int, int]] = []
    engine = build(ckpt, tmp_path / "engine", progress=lambda *step: steps.append(step))
    assert os.path.samefile(engine / WEIGHTS, ckpt / WEIGHTS)
    assert (engine / WEIGHTS).stat().st_nlink == 2
    assert steps[-1][0] == steps[-1][1] > 0
    shutil.move(ckpt / WEIGHTS, tmp_path / "moved")
    (ckpt / WEIGHTS).symlink_to(tmp_path / "moved")
    written = build(ckpt, tmp_path / "written")
    assert not shared(written)
    assert (written / WEIGHTS).read_bytes() == (engine / WEIGHTS).read_bytes()
    assert digest(written) == digest(engine)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_where_links_are_impossible_the_engine_is_written(
    number: int, ckpt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    engine = build(ckpt, tmp_path / "engine")
    assert not shared(engine)
    assert (engine / WEIGHTS).read_bytes() == (ckpt / WEIGHTS).read_bytes()


def test_only_what_would_be_written_is_linked(hf: Path, ckpt: Path, tmp_path: Path) -> None:
    """Not another type, not another program's file, not a split model."""
    assert not shared(build(ckpt, tmp_path / "float32", dtype="float32"))
    split = convert(hf, tmp_path / "split", tp_size=2)
    assert not shared(build(split, tmp_path / "whole"))
    assert not shared(split)
    save_file(load_file(ckpt / WEIGHTS), ckpt / WEIGHTS)
    assert not shared(build(ckpt, tmp_path / "foreign"))
    assert not shared(ckpt)


def test_the_users_own_model_is_never_linked(hf: Path, tmp_path: Path) -> None:
    model = make_model(Variant("gqa"))
    gguf = write_gguf(model, tmp_path / "model.gguf")
    build(hf, tmp_path / "one")
    build(gguf, tmp_path / "two")
    files = [*hf.iterdir(), gguf, *(tmp_path / "one").iterdir(), *(tmp_path / "two").iterdir()]
    assert {path.stat().st_nlink for path in files} == {1}


def test_an_engine_is_as_readable_as_the_umask_says(ckpt: Path, tmp_path: Path) -> None:
    usual = (ckpt / WEIGHTS).stat().st_mode
    (ckpt / WEIGHTS).chmod(0o400)
    engine = build(ckpt, tmp_path / "engine")
    assert not shared(engine)
    assert (engine / WEIGHTS).stat().st_mode == usual


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_not_linked(ckpt: Path, tmp_path: Path) -> None:
    """They could change the engine."""
    os.chown(ckpt / WEIGHTS, 1, -1)
    assert not shared(build(ckpt, tmp_path / "engine"))


def test_the_engine_runs_without_its_checkpoint(ckpt: Path, tmp_path: Path) -> None:
    def text() -> tuple[int, ...]:
        with LLM(tmp_path / "engine") as llm:
            return tuple(llm.generate([[5, 9, 2, 5]], SamplingParams(8))[0].output_ids)

    build(ckpt, tmp_path / "engine")
    before = text()
    shutil.rmtree(ckpt)
    assert text() == before
    assert not shared(tmp_path / "engine")


def test_replacing_one_folder_leaves_the_other_as_it_is(
    hf: Path, ckpt: Path, tmp_path: Path
) -> None:
    engine = build(ckpt, tmp_path / "engine")
    before = (ckpt / WEIGHTS).read_bytes()
    build(ckpt, engine, dtype="float32", force=True)
    assert (ckpt / WEIGHTS).read_bytes() == before
    assert not shared(ckpt)
    build(ckpt, engine, force=True)
    assert shared(ckpt)
    convert(hf, ckpt, dtype="float32", force=True)
    assert (engine / WEIGHTS).read_bytes() == before
    assert not shared(engine)


def test_linked_files_need_no_room(
    ckpt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("trtla.formats.checkpoint.shutil.disk_usage", lambda path: usage)
    assert shared(build(ckpt, tmp_path / "engine"))


def test_a_checkpoint_replaced_meanwhile_is_refused(hf: Path, tmp_path: Path) -> None:
    ckpt, folder = convert(hf, tmp_path / "ckpt", dtype="float16"), tmp_path / "engine"
    folder.mkdir()
    source = Checkpoint(ckpt, config := Checkpoint.open(ckpt).config)
    linked = link_ranks(ckpt, folder, config)
    content = bytearray((ckpt / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (ckpt / WEIGHTS).unlink()
    (ckpt / WEIGHTS).write_bytes(content)
    with pytest.raises(UsageError, match="has changed while it was read"):
        write_ranks(folder, config, source, linked=linked)
