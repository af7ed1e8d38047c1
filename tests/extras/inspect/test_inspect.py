"""`trtla inspect MODEL` and `trtla doctor MODEL`: what a model is, and what stops it here."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.extras.inspect.support import install, plug_in, without_tensorrt_llm
from tests.support.command import refused, trtla
from tests.support.families import folder_and_model
from tests.support.gguf_models import write_gguf
from tests.support.models import VARIANTS, make_model, save_model
from tests.support.tokenizers import save_byte_tokenizer
from tests.support.trtllm_engines import write_engine
from trtla import LookaheadConfig
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.formats.engine_limits import BuildSettings

pytestmark = without_tensorrt_llm


def described(folder: Path, command: str = "inspect") -> Any:
    """The description of a sound model."""
    ran = trtla(command, folder, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["schema_version"] == 1
    return ran.json


def problem(folder: Path) -> str:
    """The only problem of a model that cannot run here."""
    ran = trtla("doctor", folder, "--json")
    assert ran.code == 3, ran
    refused(ran, 3, "cannot run here: 1 problem")
    assert ran.json["model"]["next"] is None
    (only,) = ran.json["model"]["problems"]
    return str(only)


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


@pytest.mark.parametrize("name", ["qwen3-moe", "glm4-moe"])
def test_active_parameters_are_those_of_a_token(name: str) -> None:
    """All but the experts that a token does not choose."""
    folder, model = folder_and_model(name)
    experts = [layer.mlp.experts for layer in model.model.layers if hasattr(layer.mlp, "experts")]
    stored = sum(p.numel() for each in experts for p in each.parameters())
    config, description = model.config, described(folder)
    each = config.num_experts_per_tok / description["shape"]["num_experts"]
    whole = sum(tensor.numel() for tensor in model.state_dict().values())
    assert description["parameters"] == whole
    assert description["active_parameters"] == whole - stored * (1 - each)


def test_model_checkpoint_and_engine_are_told_apart_and_described(tmp_path: Path) -> None:
    tied = next(one for one in VARIANTS if one.name == "tied")
    model = make_model(tied)
    save_model(model, tied, tmp_path / "hf")
    save_byte_tokenizer(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "ckpt", tp_size=2)
    settings = BuildSettings(LookaheadConfig(3, 3, 3), max_batch_size=2)
    build_engine(tmp_path / "ckpt", tmp_path / "engine", settings)
    found = {name: described(tmp_path / name) for name in ("hf", "ckpt", "engine")}
    for description in found.values():
        assert description["problems"] == []
        assert description["parameters"] == sum(p.numel() for p in model.parameters())
        assert description["shape"]["num_key_value_heads"] == 2
        assert description["tokenizer"] is True
        assert description["bytes"] > 100_000
    assert [d["kind"] for d in found.values()] == ["Hugging Face model", "checkpoint", "engine"]
    assert [d["dtype"] for d in found.values()] == ["float32", "float16", "float16"]
    assert [d["next"].split()[1] for d in found.values()] == ["run", "build", "run"]
    assert found["ckpt"]["tp_size"] == 2
    engine = found["engine"]
    assert (engine["lookahead"], engine["max_draft_len"]) == ([3, 3, 3], 11)
    assert (engine["max_text_len"], engine["limits"]["max_seq_len"]) == (16, 27)
    assert engine["backend"] == "torch"
    (tmp_path / "hf" / "tokenizer.json").write_text("{}")
    broken = described(tmp_path / "hf")
    assert broken["next"].endswith("--tokenizer-dir TOKENIZER")  # a text cannot be run without
    assert "cannot be loaded" in broken["notes"][0]


def test_the_table_and_the_next_command(engine: Path) -> None:
    ran = trtla("inspect", engine)
    assert ran.code == 0
    rows = dict(line.strip("| ").split("|", 1) for line in ran.out.splitlines())
    shown = {key.strip(): value.strip() for key, value in rows.items()}
    assert (shown["lookahead"], shown["limits.max_batch_size"]) == ("4, 3, 4", "4")
    assert shown["weight_types.float32"].startswith("tensors ")
    assert shown["kv_cache_bytes"].endswith(" MB")
    assert (shown["tokenizer"], shown["chat_template"]) == ("yes", "-")
    assert not {"problems", "notes", "hint"} & shown.keys()
    assert trtla(*shlex.split(shown["next"])[1:], "-n", "2").code == 0


def test_every_kind_runs_here(model: Path, checkpoint: Path, engine: Path, tmp_path: Path) -> None:
    file = write_gguf(make_model(VARIANTS[0]), tmp_path / "model.gguf")
    for path in (model, checkpoint, engine, file):
        found = described(path, "doctor")
        assert found["cpu"]["cores"] >= 1
        assert (found["model"]["path"], found["model"]["problems"]) == (str(path), [])
    ran = trtla("doctor", model, env={"CXX": "no-such-compiler"})
    assert ran.code == 0
    assert "\n| model.next " in ran.out
    assert "\nnote: PyTorch's operations compute it: no C++ compiler was found" in ran.out


@pytest.mark.parametrize(
    ("key", "value", "said", "hint"),
    [
        ("architectures", ["Gemma2ForCausalLM"], "Gemma2ForCausalLM is not supp", "trtla runs "),
        ("num_experts", 8, '"num_experts" 8 is not supported', "with transformers"),
        ("num_key_value_heads", "x", "num_key_value_heads", "copy the file again"),
    ],
)
def test_a_problem_has_the_hint_that_running_has(
    model: Path, tmp_path: Path, key: str, value: object, said: str, hint: str
) -> None:
    shutil.copytree(model, folder := tmp_path / "model")
    edit(folder / "config.json", **{key: value})
    opened = trtla("run", folder, "-p", "x")
    refused(opened, 2, said, hint)
    for command in ("inspect", "doctor"):
        shown = trtla(command, folder)
        assert f"problem: {folder}" in shown.out
        assert said in shown.out
        refused(shown, 3, "1 problem", hint)
        assert opened.err.splitlines()[-1] == shown.err.splitlines()[-1]


def test_of_many_problems_the_first_ones_are_shown(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, folder := tmp_path / "model")
    edit(folder / "config.json", num_hidden_layers=4)
    problems = json.loads(trtla("inspect", folder, "--json").out)["problems"]
    assert len(problems) > 11
    shown = [line for line in trtla("inspect", folder).out.splitlines() if "problem: " in line]
    assert len(shown) == 11
    assert shown[-1] == f"problem: and {len(problems) - 10} more, which --json has"


def test_an_engine_that_is_cut(engine: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(engine, tmp_path / "engine"))
    (broken / "rank0.safetensors").write_bytes(b"")
    assert "rank0.safetensors" in problem(broken)


def test_an_engine_of_tensorrt_llm(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine", "1.1.0")
    assert problem(engine) == "TensorRT-LLM is not installed"
    install(patch, tmp_path, "1.1.0")
    assert problem(engine) == "there is no GPU that PyTorch can use"
    plug_in(patch, (8, 0))
    found = described(engine, "doctor")["model"]
    assert (found["backend"], found["problems"], found["notes"]) == ("tensorrt-llm", [], [])
    assert found["next"].endswith("--lookahead 7,7,7")


@pytest.mark.parametrize(
    ("values", "said", "release", "gpu"),
    [
        ({"head_size": 100}, "head_size 100 has no kernel", "1.2.1", (8, 0)),
        ({"quantization": {"quant_algo": "FP8"}}, "is FP8, and compute", "1.2.1", (8, 0)),
        ({}, "Blackwell", "1.2.1", (10, 0)),
        ({}, "1.2.1, and 1.1.0 is installed", "1.1.0", (9, 0)),
    ],
)
def test_an_engine_without_a_kernel_or_its_release(
    patch: pytest.MonkeyPatch, tmp_path: Path, values: Any, said: str, release: str, gpu: Any
) -> None:
    engine = write_engine(tmp_path / "engine", "1.2.1")
    install(patch, tmp_path, release)
    plug_in(patch, gpu)
    edit(engine / "config.json", **{f"pretrained_config__{k}": v for k, v in values.items()})
    assert said in problem(engine)


def test_an_engine_of_another_gpu(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine", "1.2.1")
    install(patch, tmp_path)
    plug_in(patch, (9, 0))
    adopted = trtla("build", "--from-existing", engine, "--lookahead", "7,7,7")
    assert adopted.code == 0, adopted.err
    assert described(engine, "doctor")["model"]["problems"] == []
    edit(engine / "trtla.json", compute_capability="8.9")
    assert "was built for compute capability 8.9, and this GPU has 9.0" in problem(engine)


def test_a_model_that_only_the_torch_executor_runs(
    patch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: Path
) -> None:
    install(patch, tmp_path)
    plug_in(patch, (9, 0))
    folder = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    edit(folder / "config.json", dtype="float16", rotary_scaling={"type": "dynamic", "factor": 2.0})
    found = described(folder, "doctor")["model"]
    (note,) = (one for one in found["notes"] if one.startswith("TensorRT-LLM cannot run it"))
    assert "rope scaling dynamic" in note
    assert note.endswith("use --backend torch")
    assert found["problems"] == []
