"""`trtla doctor MODEL`: what stops a model on this machine, and that nothing else does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Ran, refused, trtla
from tests.support.fake_trtllm import install, patched, plug_in, without_tensorrt_llm
from tests.support.gguf_models import write_gguf
from tests.support.models import VARIANTS, make_model
from tests.support.trtllm_engines import RELEASES, write_engine
from trtla import LookaheadConfig
from trtla.trtllm.build import adopt_engine

pytestmark = without_tensorrt_llm


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """See `patched`."""
    with patched() as patch:
        yield patch


def checked(ran: Ran) -> Any:
    """The check of a model that can run here."""
    assert ran.code == 0, ran.err
    return ran.json["model"]


def failed(ran: Ran) -> list[str]:
    """The problems of a model that cannot run here."""
    assert ran.code == 3, ran
    assert "cannot run here" in ran.err
    return list(ran.json["model"]["problems"])


def test_a_model_on_the_torch_executor(tiny_llama: Path) -> None:
    found = checked(trtla("doctor", tiny_llama, "--json"))
    assert found["kind"] == "Hugging Face model"
    assert found["backend"] == "torch"
    assert found["model"]["head_size"] == 64
    assert found["problems"] == []
    assert "| runs here " in trtla("doctor", tiny_llama).out


def test_every_kind(model: Path, checkpoint: Path, engine: Path) -> None:
    for folder, kind in (
        (model, "Hugging Face model"),
        (checkpoint, "checkpoint"),
        (engine, "engine"),
    ):
        found = checked(trtla("doctor", folder, "--json"))
        assert (found["kind"], found["problems"]) == (kind, [])


def test_a_gguf_file_is_shown_as_it_was_given(tmp_path: Path) -> None:
    file = write_gguf(make_model(VARIANTS[0]), tmp_path / "model.gguf")
    found = checked(trtla("doctor", file, "--json"))
    assert (found["path"], found["kind"], found["problems"]) == (str(file), "GGUF file", [])


def test_no_folder_of_ours(tmp_path: Path) -> None:
    refused(trtla("doctor", tmp_path), 2, "config.json")
    refused(trtla("doctor", tmp_path / "absent"), 2, "absent")


def test_a_broken_engine(engine: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(engine, tmp_path / "engine")
    (broken / "rank0.safetensors").write_bytes(b"")
    refused(trtla("doctor", broken), 3, "cannot run here with torch")
    assert failed(trtla("doctor", broken, "--json"))


def test_a_broken_config(model: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(model, tmp_path / "model")
    edit(broken / "config.json", vocab_size=-1)
    assert "vocab_size" in failed(trtla("doctor", broken, "--json"))[0]
    refused(trtla("doctor", broken), 3, "cannot run here")


def edit(path: Path, **values: object) -> None:
    """Change keys of a JSON file; a dotted key goes into the objects."""
    data = json.loads(path.read_text())
    for key, value in values.items():
        *outer, last = key.split("__")
        place = data
        for name in outer:
            place = place[name]
        place[last] = value
    path.write_text(json.dumps(data))


@pytest.fixture
def trt_engine(tmp_path: Path) -> Path:
    """An engine of TensorRT-LLM 1.2.1: head size 128, float16, 83 draft tokens."""
    return write_engine(tmp_path / "trt-engine", "1.2.1")


@pytest.mark.parametrize("release", RELEASES)
def test_an_engine_of_tensorrt_llm(patch: pytest.MonkeyPatch, tmp_path: Path, release: str) -> None:
    install(patch, tmp_path, release)
    plug_in(patch, (8, 0))
    engine = write_engine(tmp_path / "trt-engine", release)
    found = checked(trtla("doctor", engine, "--json"))
    assert found["backend"] == "tensorrt-llm"
    assert found["problems"] == found["warnings"] == []


def test_an_engine_without_what_built_it(trt_engine: Path) -> None:
    problems = failed(trtla("doctor", trt_engine, "--json"))
    assert problems == ["TensorRT-LLM is not installed", "there is no GPU that PyTorch can use"]


def test_an_engine_of_another_release(
    patch: pytest.MonkeyPatch, tmp_path: Path, trt_engine: Path
) -> None:
    install(patch, tmp_path, "1.1.0")
    plug_in(patch, (9, 0))
    (problem,) = failed(trtla("doctor", trt_engine, "--json"))
    assert "1.2.1" in problem
    assert "1.1.0" in problem


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"pretrained_config__head_size": 100}, "head_size 100 has no kernel"),
        (
            {
                "pretrained_config__num_key_value_heads": 1,
                "pretrained_config__num_attention_heads": 64,
            },
            "64 query heads",
        ),
        ({"pretrained_config__dtype": "float32"}, "dtype is float32"),
        ({"pretrained_config__quantization": {"quant_algo": "FP8"}}, "FP8 needs"),
        ({"pretrained_config__quantization": {"kv_cache_quant_algo": "FP8"}}, "FP8 needs"),
    ],
)
def test_models_without_a_kernel(
    patch: pytest.MonkeyPatch,
    tmp_path: Path,
    trt_engine: Path,
    values: dict[str, object],
    problem: str,
) -> None:
    install(patch, tmp_path)
    plug_in(patch, (8, 0))
    edit(trt_engine / "config.json", **values)
    assert problem in " ".join(failed(trtla("doctor", trt_engine, "--json")))


def test_dynamic_rope(patch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: Path) -> None:
    install(patch, tmp_path)
    plug_in(patch, (9, 0))
    folder = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    edit(folder / "config.json", dtype="float16", rotary_scaling={"type": "dynamic", "factor": 2.0})
    assert "rope scaling dynamic" in " ".join(failed(trtla("doctor", folder, "--json")))


def test_a_triple_without_drafts_needs_no_kernels(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(patch, tmp_path)
    plug_in(patch, (10, 0))
    folder = write_engine(tmp_path / "engine", max_draft_len=0)
    adopt_engine(folder, LookaheadConfig(1, 2, 0))
    assert checked(trtla("doctor", folder, "--json"))["model"]["lookahead"] is False


def test_pipeline_stages(patch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: Path) -> None:
    install(patch, tmp_path)
    plug_in(patch, (9, 0), (9, 0))
    engine = write_engine(tmp_path / "split", ranks=2, stages=2)
    (problem,) = failed(trtla("doctor", engine, "--json"))
    assert "lookahead does not go with pp_size 2" in problem
    plain = write_engine(tmp_path / "plain", max_draft_len=0, ranks=2, stages=2)
    assert checked(trtla("doctor", plain, "--json"))["problems"] == []
    split = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    edit(split / "config.json", mapping={"world_size": 2, "tp_size": 1, "pp_size": 2})
    assert "pp_size 2" in " ".join(failed(trtla("doctor", split, "--json")))


def test_an_engine_of_another_gpu(
    patch: pytest.MonkeyPatch, tmp_path: Path, trt_engine: Path
) -> None:
    install(patch, tmp_path)
    plug_in(patch, (9, 0))
    adopted = trtla("build", "--from-existing", trt_engine, "--lookahead", "7,7,7")
    assert adopted.code == 0, adopted.err
    assert checked(trtla("doctor", trt_engine, "--json"))["problems"] == []
    edit(trt_engine / "trtla.json", compute_capability="8.9")
    problems = failed(trtla("doctor", trt_engine, "--json"))
    assert problems == ["GPU 0: compute capability is 9.0, built for 8.9"]


def test_lookahead_has_no_kernel_on_blackwell_and_plain_engines_need_none(
    patch: pytest.MonkeyPatch, tmp_path: Path, trt_engine: Path
) -> None:
    install(patch, tmp_path)
    plug_in(patch, (10, 0))
    refused(trtla("doctor", trt_engine), 3, "--backend torch")
    assert "Blackwell" in failed(trtla("doctor", trt_engine, "--json"))[0]
    plain = write_engine(tmp_path / "plain", "1.2.1", max_draft_len=0)
    assert checked(trtla("doctor", plain, "--json"))["problems"] == []


def test_head_sizes_of_jit_kernels_are_a_warning(
    patch: pytest.MonkeyPatch, tmp_path: Path, trt_engine: Path
) -> None:
    install(patch, tmp_path)
    plug_in(patch, (9, 0))
    edit(trt_engine / "config.json", pretrained_config__head_size=96)
    ran = trtla("doctor", trt_engine)
    assert ran.code == 0, ran.err
    assert "\nwarning: head_size 96" in ran.out


def test_a_model_split_over_more_gpus_than_are_here(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(patch, tmp_path)
    plug_in(patch, (9, 0))
    engine = write_engine(tmp_path / "split", "1.2.1", ranks=2)
    (warning,) = checked(trtla("doctor", engine, "--json"))["warnings"]
    assert warning == "split over 2 GPUs, and this machine has 1"
