"""Weight files are closed as soon as they have been read, whoever keeps the model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.fp8_models import BIASED
from tests.support.gguf_models import write_gguf
from tests.support.models import make_model
from trtla import LLM
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.formats.engine import model_digest
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.model import Model

OPEN = Path("/proc/self/fd")
pytestmark = pytest.mark.skipif(not OPEN.is_dir(), reason="the system does not list open files")


def open_below(folder: Path) -> list[str]:
    links = (OPEN / name for name in os.listdir(OPEN))
    found = (os.readlink(link) for link in links if link.is_symlink())
    return sorted(name for name in found if name.startswith(f"{folder.resolve()}/"))


@pytest.fixture(params=["folder", "engine", "gguf"])
def model(request, biased_hf, biased_fp8, tmp_path):
    """A model's path, and what was opened to make it."""
    if request.param == "gguf":
        return write_gguf(make_model(BIASED), tmp_path / "model.gguf", "Q8_0")
    if request.param == "folder":
        return biased_hf
    build_engine(biased_fp8, tmp_path / "engine", BuildSettings(), backend="torch")
    assert open_below(biased_fp8) == []
    return tmp_path / "engine"


def test_the_files_of_a_model_are_closed_while_it_is_kept(model):
    engine = Model.at(model).open(None)
    weights = engine.weights()
    next(weights)
    assert open_below(model.parent)
    assert len(list(weights)) > 1
    assert open_below(model.parent) == []
    assert model_digest(engine) == model_digest(engine)
    assert open_below(model.parent) == []


def test_the_files_of_an_open_model_are_closed(tiny_llama):
    with LLM(tiny_llama, threads=1):
        assert open_below(tiny_llama) == []


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("error::ResourceWarning")
@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_convert_leaves_no_file_to_the_garbage_collector(biased_hf, tmp_path, dtype):
    convert(biased_hf, tmp_path / "ckpt", dtype=dtype)
    assert open_below(biased_hf) == []
