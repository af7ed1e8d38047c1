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


def test_a_gguf_file_is_shown_as_it_was_given(tmp_path: Path) -> None:
    file = write_gguf(make_model(VARIANTS[0]), tmp_path / "model.gguf")
    found = checked(trtla("doctor", file, "--json"))
    assert (found["path"], found["kind"], found["problems"]) == (str(file), "GGUF file", [])


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


@pytest.mark.parametrize(
    ("values", "problem", "release", "gpu"),
    [
        ({"head_size": 100}, "head_size 100 has no kernel", "1.2.1", (8, 0)),
        ({"num_key_value_heads": 1, "num_attention_heads": 64}, "64 query heads", "1.2.1", (8, 0)),
        ({"dtype": "float32"}, "dtype is float32", "1.2.1", (8, 0)),
        ({"quantization": {"quant_algo": "FP8"}}, "FP8 needs", "1.2.1", (8, 0)),
        ({"quantization": {"kv_cache_quant_algo": "FP8"}}, "FP8 needs", "1.2.1", (8, 0)),
        ({}, "Blackwell", "1.2.1", (10, 0)),
        ({}, "1.2.1, and 1.1.0 is installed", "1.1.0", (9, 0)),
    ],
)  # fmt: skip
def test_models_without_a_kernel_or_their_release(
    patch: pytest.MonkeyPatch, tmp_path: Path, trt_engine: Path,
    values: dict[str, object], problem: str, release: str, gpu: tuple[int, int],
) -> None:  # fmt: skip
    install(patch, tmp_path, release)
    plug_in(patch, gpu)
    edit(trt_engine / "config.json", **{f"pretrained_config__{k}": v for k, v in values.items()})
    assert problem in " ".join(failed(trtla("doctor", trt_engine, "--json")))
    refused(trtla("doctor", trt_engine), 3, "cannot run here with")


def test_dynamic_rope(patch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: Path) -> None:
    install(patch, tmp_path)
    plug_in(patch, (9, 0))
    folder = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    edit(folder / "config.json", dtype="float16", rotary_scaling={"type": "dynamic", "factor": 2.0})
    assert "rope scaling dynamic" in " ".join(failed(trtla("doctor", folder, "--json")))


def test_head_sizes_of_jit_kernels_are_a_warning(
    patch: pytest.MonkeyPatch, tmp_path: Path, trt_engine: Path
) -> None:
    install(patch, tmp_path)
    plug_in(patch, (9, 0))
    edit(trt_engine / "config.json", pretrained_config__head_size=96)
    ran = trtla("doctor", trt_engine)
    assert ran.code == 0, ran.err
    assert "\nwarning: head_size 96" in ran.out


def test_broken_folders_are_listed(engine: Path, model: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(engine, tmp_path / "engine"))
    (broken / "rank0.safetensors").write_bytes(b"")
    bad = Path(shutil.copytree(model, tmp_path / "model"))
    edit(bad / "config.json", vocab_size=-1)
    for folder, named in ((broken, "rank0.safetensors"), (bad, "vocab_size")):
        refused(trtla("doctor", folder), 3, "cannot run here")
        assert named in failed(trtla("doctor", folder, "--json"))[0]


@pytest.mark.parametrize("stages", [1, 2])
def test_a_plain_engine_needs_no_kernel(
    patch: pytest.MonkeyPatch, tmp_path: Path, stages: int
) -> None:
    install(patch, tmp_path)
    plug_in(patch, *[(10, 0)] * stages)
    plain = write_engine(tmp_path / "plain", "1.2.1", max_draft_len=0, ranks=stages, stages=stages)
    assert checked(trtla("doctor", plain, "--json"))["problems"] == []


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


def test_a_model_split_over_more_gpus_than_are_here(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(patch, tmp_path)
    plug_in(patch, (9, 0))
    engine = write_engine(tmp_path / "split", "1.2.1", ranks=2)
    (warning,) = checked(trtla("doctor", engine, "--json"))["warnings"]
    assert warning == "split over 2 GPUs, and this machine has 1"


def test_every_kind(model: Path, checkpoint: Path, engine: Path) -> None:
    for folder, kind in (
        (model, "Hugging Face model"),
        (checkpoint, "checkpoint"),
        (engine, "engine"),
    ):
        found = checked(trtla("doctor", folder, "--json"))
        assert (found["kind"], found["problems"]) == (kind, [])
        ran = trtla("inspect", folder, "--json")
        assert ran.code == 0, ran.err
        assert ran.json["schema_version"] == 1
        assert ran.json["kind"] == kind
        assert ran.json["problems"] == []
        assert ran.json["dtype"] == "float32"
        assert ran.json["shape"]["num_key_value_heads"] == 2
    assert (ran.json["lookahead"], ran.json["max_draft_len"]) == ([4, 3, 4], 15)
    assert (ran.json["limits"]["max_batch_size"], ran.json["max_text_len"]) == (4, 256)


def test_for_people(engine: Path) -> None:
    ran = trtla("inspect", engine)
    assert ran.code == 0
    assert "| lookahead " in ran.out
    assert "| max_draft_len " in ran.out
    rows = dict(line.strip("| ").split("|", 1) for line in ran.out.splitlines())
    shown = {key.strip(): value.strip() for key, value in rows.items()}
    assert shown["size"].endswith(" MB")
    assert shown["chat_template"] == "no"
    assert (shown["tokenizer"], shown["shape.attn_bias"]) == ("yes", "no")
    assert not {"problems", "bytes", "quant_algo"} & shown.keys()


def test_problems_are_told(engine: Path, tmp_path: Path) -> None:
    broken = tmp_path / "engine"
    shutil.copytree(engine, broken)
    weights = broken / "rank0.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    ran = trtla("inspect", broken)
    assert "problem: " in ran.out
    refused(ran, 3, "problem")
    assert trtla("inspect", broken, "--json").json["problems"]


@pytest.mark.parametrize(
    ("key", "value", "problem", "hint"),
    [
        (
            "architectures",
            ["Gemma2ForCausalLM"],
            "Gemma2ForCausalLM is not supported",
            "trtla runs ",
        ),
        ("num_experts", 8, '"num_experts" 8 is not supported', "with transformers"),
        ("num_key_value_heads", "x", "num_key_value_heads", "copy the file again"),
    ],
)
def test_a_problem_has_its_own_hint(
    model: Path, tmp_path: Path, key: str, value: object, problem: str, hint: str
) -> None:
    shutil.copytree(model, folder := tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    shown = trtla("inspect", folder)
    assert problem in shown.out
    refused(shown, 3, "has 1 problem", hint)
    opened = trtla("run", folder, "-p", "x")
    refused(opened, 2, problem, hint)
    assert opened.err.splitlines()[-1] == shown.err.splitlines()[-1]
