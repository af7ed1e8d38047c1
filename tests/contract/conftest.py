"""The stand-in for TensorRT-LLM on the paths, a checkpoint it can build, and a GPU to report.

`standin` changes paths and environment and imports nothing: the code under test imports, as it does
in life. Another release: `@pytest.mark.parametrize("standin", ["0.20.0"], indirect=True)`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.support.models import Variant, make_model, save_model
from tests.support.standin import FOLDER, Standin
from tests.support.tokenizers import save_byte_tokenizer

DEFAULT_VERSION = "1.2.1"


@pytest.fixture
def standin(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Standin]:
    """A fresh stand-in of one release: importable, on PATH, and named by package metadata."""
    version = getattr(request, "param", DEFAULT_VERSION)
    metadata = tmp_path / "standin-metadata"
    _write_metadata(metadata, version)
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_VERSION", version)
    _unset(monkeypatch, "TLLM_LOG_LEVEL", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.syspath_prepend(metadata)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER), prepend=os.pathsep)
    if not version.startswith("1.3"):  # the command left with the backend
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        monkeypatch.setenv("PATH", str(FOLDER / "bin"), prepend=os.pathsep)
    _forget()
    yield Standin(version)
    _forget()


def _write_metadata(folder: Path, version: str) -> None:
    info = folder / f"tensorrt_llm-{version}.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {version}\n"
    )


def _unset(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Unset variables so that what a test sets in them does not stay either."""
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def _forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.fixture
def fake_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """torch reports one GPU, an H100 unless told otherwise; its compute capability.

    Subprocesses see it too, through the stand-in's sitecustomize.py.
    """
    capability = str(getattr(request, "param", "9.0"))
    spec = importlib.util.spec_from_file_location("standin_gpu", FOLDER / "standin_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, function in module.functions(capability).items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_GPU", capability)
    if str(FOLDER) not in os.environ.get("PYTHONPATH", ""):
        monkeypatch.setenv("PYTHONPATH", str(FOLDER), prepend=os.pathsep)
    return capability


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama in float16 with head size 64; ids 0 to 255 are bytes, 256 and 257 begin, end.

    Its weights are large enough that texts do not stand still, and repeat themselves now and then.
    The seed is one whose texts nowhere come near a tie: half precision must not change them.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-model")
    torch.manual_seed(863)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=128,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        bos_token_id=256,
        eos_token_id=257,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            norm = "norm" in name
            tensor.normal_(1.0 if norm else 0.0, 0.1 if norm else 0.07)
        model.lm_head.weight.mul_(4.0)
    model.half().save_pretrained(folder)
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def integer_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose sizes the kernels for integer weights take, also on two ranks."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "vocab_size": 258}
    keys = {**sizes, "max_position_embeddings": 512, "attention_bias": True}
    variant = Variant("integers", keys)
    return save_model(make_model(variant), variant, tmp_path_factory.mktemp("integers") / "hf")


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as a TensorRT-LLM checkpoint of one rank, with the tokenizer."""
    from trtla.build.convert import convert

    folder = tmp_path_factory.mktemp("tiny") / "checkpoint"
    convert(tiny_model, folder, dtype="float16")
    return folder


@pytest.fixture(scope="session")
def tiny_checkpoint_tp2_pp2(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in four ranks; its one K/V head is on two of them twice.

    Two ids that are never the best one make a vocabulary of 260, which divides by the ranks.
    """
    from transformers import LlamaForCausalLM

    from trtla.build.convert import convert

    larger, folder = tmp_path_factory.mktemp("larger"), tmp_path_factory.mktemp("tiny-ranks")
    model = LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float16)
    model.resize_token_embeddings(260, mean_resizing=False)
    with torch.no_grad():
        for part in (model.get_input_embeddings(), model.get_output_embeddings()):
            part.weight[258:] = 0.0
    model.save_pretrained(larger)
    convert(larger, folder / "checkpoint", dtype="float16", tp_size=2, pp_size=2)
    return folder / "checkpoint"


@pytest.fixture(scope="session")
def tiny_checkpoint_tp2(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in two ranks, each with the one K/V head."""
    from trtla.build.convert import convert

    folder = tmp_path_factory.mktemp("tiny-halves") / "checkpoint"
    convert(tiny_model, folder, dtype="float16", tp_size=2)
    return folder


@pytest.fixture
def engine(tiny_checkpoint: Path, tmp_path: Path) -> Callable[..., Path]:
    """Builds an engine of a triple; `bare` is without trtla.json, as trtllm-build leaves it."""

    from trtla import LookaheadConfig
    from trtla.build.engine import build_engine
    from trtla.formats.engine_limits import BuildSettings

    def build(w: int = 4, n: int = 4, g: int = 4, *, bare: bool = False, **limits: int) -> Path:
        folder = tmp_path / f"{w}-{n}-{g}-{bare}-{'-'.join(map(str, limits.values()))}"
        if not folder.exists():
            given = {"max_batch_size": 4, "max_input_len": 64, "max_seq_len": 128, **limits}
            asked = BuildSettings(LookaheadConfig(w, n, g), **given)
            build_engine(tiny_checkpoint, folder, asked, backend="tensorrt-llm")
            if bare:
                (folder / "trtla.json").unlink()
        return folder

    return build
