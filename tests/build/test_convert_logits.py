"""Proof of conversion: for every variant and split, the ranks put together give HF's logits."""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.models import (
    VARIANTS,
    Variant,
    assemble,
    logits,
    make_model,
    model_of,
    save_model,
)
from tests.support.tensors import equal
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.engine import engine_from_hugging_face, open_engine
from trtla.formats.engine_limits import BuildSettings

MORE_SPLITS = [(1, 1), (1, 2), (2, 2), (4, 1)]


@lru_cache(maxsize=2)
def reference(name: str) -> tuple[Variant, torch.Tensor]:
    variant = next(v for v in VARIANTS if v.name == name)
    return variant, logits(make_model(variant))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hf")
    return {v.name: save_model(make_model(v), v, root / v.name) for v in VARIANTS}


@pytest.mark.parametrize(
    ("tp", "pp"),
    [(2, 1), (4, 2), *(pytest.param(*split, marks=pytest.mark.deep) for split in MORE_SPLITS)],
)
@pytest.mark.parametrize("name", [v.name for v in VARIANTS])
def test_ranks_put_together_give_the_models_logits(
    name: str, tp: int, pp: int, folders: dict[str, Path], tmp_path: Path
) -> None:
    _, expected = reference(name)
    convert(folders[name], tmp_path / "ckpt", dtype="float32", tp_size=tp, pp_size=pp)
    config = json.loads((tmp_path / "ckpt" / "config.json").read_text())
    state = assemble(tmp_path / "ckpt")
    torch.testing.assert_close(logits(model_of(config, state)), expected, atol=1e-5, rtol=0)

    # trtla's own reassembly gives the very tensors of the one-rank checkpoint, made in memory
    whole = dict(Checkpoint.open(tmp_path / "ckpt").full_tensors())
    direct = dict(engine_from_hugging_face(folders[name], dtype="float32").weights())
    assert list(whole) == list(direct)
    assert all(equal(whole[key], direct[key]) for key in whole)
    assert equal(
        whole["transformer.layers.1.mlp.fc.weight"], state["model.layers.1.mlp.gate_proj.weight"]
    )


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (4, 2)])
def test_an_engine_is_the_same_from_any_split_and_from_hugging_face(
    tp: int, pp: int, folders: dict[str, Path], tmp_path: Path
) -> None:
    convert(folders["tied"], tmp_path / "ckpt", dtype="float32", tp_size=tp, pp_size=pp)
    merged = build_engine(tmp_path / "ckpt", tmp_path / "one", BuildSettings())
    direct = build_engine(folders["tied"], tmp_path / "two", BuildSettings(), dtype="float32")
    one, two = (path / "rank0.safetensors" for path in (tmp_path / "one", tmp_path / "two"))
    assert one.read_bytes() == two.read_bytes()
    assert merged.manifest is not None
    assert direct.manifest is not None
    assert merged.manifest.source_sha256 == direct.manifest.source_sha256
    assert merged.config.pretrained_config.mapping.world_size == 1


def test_a_tied_lm_head_is_stored_once_and_compared_if_stored(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = folders["tied"]
    convert(folder, tmp_path / "ckpt")
    convert(folder, tmp_path / "split", tp_size=2)  # where TensorRT-LLM cannot share it
    new = build_engine(tmp_path / "split", tmp_path / "new", BuildSettings())
    held = [load_file(path / "rank0.safetensors") for path in (tmp_path / "ckpt", new.path)]
    assert all("lm_head.weight" not in tensors for tensors in held)
    assert "lm_head.weight" in load_file(tmp_path / "split" / "rank1.safetensors")
    for head, copies in ((0.0, 0), (1.0, 1)):  # the embedding again, or another
        stored = tmp_path / f"stored{copies}"
        shutil.copytree(new.path, stored)
        tensors = {
            **held[1],
            "lm_head.weight": held[1]["transformer.vocab_embedding.weight"] + head,
        }
        save_file(tensors, stored / "rank0.safetensors")
        names = [name for name, _ in open_engine(stored).weights()]
        assert names.count("lm_head.weight") == copies
