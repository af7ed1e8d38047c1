"""PyTorch's `.bin` files give what safetensors files give, and run no code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.models import Evil, Variant, make_model, save_model
from trtla.build.convert import convert
from trtla.errors import UsageError
from trtla.formats.bin_files import BinFile
from trtla.formats.model import Model

MODEL = "pytorch_model.bin"


def weights(folder: Path) -> dict[str, np.ndarray]:
    return dict(Model.at(folder).open(None).weights())


@pytest.mark.parametrize("kind", ["bin", "sharded-bin"])
def test_its_weights_are_those_of_safetensors(kind: str, tmp_path: Path) -> None:
    """Tied weights in bfloat16, in one file or in several with their index."""
    keys = {"tie_word_embeddings": True}
    model = make_model(Variant("", keys)).to(torch.bfloat16)
    plain, own = Variant("", keys), Variant("", keys, weights=kind)
    wanted = weights(save_model(model, plain, tmp_path / "safetensors"))
    found = weights(save_model(model, own, tmp_path / "bin"))
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype == "bfloat16"
        assert np.array_equal(found[name].view(np.uint16), tensor.view(np.uint16)), name


@pytest.mark.parametrize("new", [True, False])
def test_rows_of_any_layout(new: bool, tmp_path: Path) -> None:
    whole = torch.arange(60.0).reshape(6, 10)
    state = {"turned": whole.T, "part": torch.nn.Parameter(whole[2:5, 3:7]), "one": whole[0, 0]}
    torch.save(state, tmp_path / MODEL, _use_new_zipfile_serialization=new)
    file = BinFile(tmp_path / MODEL)
    assert file.read("turned", 1, 3).tolist() == whole.T[1:3].tolist()
    assert file.read("part", 0, 3).tolist() == whole[2:5, 3:7].tolist()
    assert file.entries["one"].shape == ()


def bin_model(tmp_path: Path) -> Path:
    return save_model(make_model(Variant("")), Variant("", weights="bin"), tmp_path / "model")


def test_code_in_it_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = bin_model(tmp_path)
    torch.save({"model.norm.weight": Evil()}, folder / MODEL)
    with pytest.raises(UsageError, match="objects other than tensors") as raised:
        convert(folder, tmp_path / "out")
    assert "\n" not in raised.value.message
    assert not (tmp_path / "evil").exists()


def test_a_file_that_is_cut_is_named(tmp_path: Path) -> None:
    path = bin_model(tmp_path) / MODEL
    file = BinFile(path)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(UsageError, match=f"^{path} has changed while it was read"):
        file.read("model.norm.weight", 0, 1)
    with pytest.raises(UsageError, match=f"^{path} is truncated"):
        BinFile(path)
