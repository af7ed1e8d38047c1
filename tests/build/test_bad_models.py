"""Every broken model or checkpoint ends in one sentence with the value, a hint, and no output."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.inspected import inspected
from tests.support.models import Variant, make_model, save_model
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.errors import UsageError
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.engine_limits import BuildSettings

Change = Callable[[Path], None]


def config(**keys: Any) -> Change:
    """Change keys of config.json."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))

    return change


def config_text(old: str, new: str) -> Change:
    """Change config.json as text, for what JSON writers do not write."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


def tensors(file: str, edit: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    """Change the tensors of a safetensors file."""

    def change(folder: Path) -> None:
        data = load_file(folder / file)
        edit(data)
        save_file(data, folder / file)

    return change


def cut(file: str, size: int) -> Change:
    """Cut bytes off the end of a file."""

    def change(folder: Path) -> None:
        data = (folder / file).read_bytes()
        (folder / file).write_bytes(data[: len(data) - size])

    return change


def drop(file: str) -> Change:
    return lambda folder: (folder / file).unlink()


ROPE = {"rope_type": "longrope", "factor": 4.0, "rope_theta": 1e4}
Q = "model.layers.1.self_attn.q_proj.weight"
QKV = "transformer.layers.1.attention.qkv.weight"
HF_CASES = [
    ("no-config", drop("config.json"), "no config.json"),
    ("no-weights", drop("model.safetensors"), "has no weights"),
    ("architecture", config(architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel"),
    ("rope", config(rope_parameters=ROPE), "longrope"),
    ("rope-old", config(rope_parameters=None, rope_scaling={"type": "longrope"}), "longrope"),
    ("yarn", config(rope_parameters={"rope_type": "yarn", "factor": None}), "factor"),
    ("beta", config(rope_parameters={**ROPE, "rope_type": "yarn", "beta_fast": 0}), "beta_fast"),
    (
        "rope-factor",
        config(rope_parameters={"rope_type": "linear", "factor": None}),
        '"factor" None',
    ),
    ("moe", config(architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe"), "Qwen2MoeFor"),
    (
        "qwen2-without-biases",
        config(architectures=["Qwen2ForCausalLM"], model_type="qwen2", attention_bias=None),
        "lacks tensor model.layers.0.self_attn.q_proj.bias",
    ),
    ("activation", config(hidden_act="gelu"), "gelu"),
    ("quantised", config(quantization_config={"quant_method": "gptq"}), "gptq"),
    ("dtype", config(dtype="float8_e4m3fn"), "float8_e4m3fn"),
    ("nan", config_text("1e-05", "NaN"), "NaN"),
    ("infinite", config_text("1e-05", "1e999"), '"rms_norm_eps" is inf'),
    ("negative", config(num_hidden_layers=-2), '"num_hidden_layers" is -2'),
    ("text", config(hidden_size="wide"), "'wide'"),
    ("heads", config(num_key_value_heads=3), "num_key_value_heads 3"),
    ("not-json", config_text("{", "{{"), "is not JSON"),
    ("missing", tensors("model.safetensors", lambda t: t.pop(Q)), f"lacks tensor {Q}"),
    (
        "extra",
        tensors("model.safetensors", lambda t: t.update({"model.odd": torch.ones(2)})),
        "holds tensor model.odd",
    ),
    ("extra-layer", config(num_hidden_layers=1), "holds tensor model.layers.1."),
    ("shape", config(intermediate_size=97), "asks for [97, 64]"),
    (
        "integers",
        tensors("model.safetensors", lambda t: t.update({Q: t[Q].to(torch.int8)})),
        f"{Q} is int8",
    ),
    ("truncated", cut("model.safetensors", 1000), "is truncated"),
    ("header", cut("model.safetensors", 10**9), "truncated or not safetensors"),
]
CHECKPOINT_CASES = [
    ("rank", drop("rank1.safetensors"), "rank1.safetensors does not exist"),
    ("truncated", cut("rank1.safetensors", 10), "rank1.safetensors is truncated"),
    ("missing", tensors("rank1.safetensors", lambda t: t.pop(QKV)), f"lacks tensor {QKV}"),
    (
        "extra",
        tensors("rank0.safetensors", lambda t: t.update({"odd": torch.ones(2)})),
        "holds tensor odd",
    ),
    ("shape", config(vocab_size=103), "config.json asks for [103, 64]"),
    ("mapping", config(mapping={"world_size": 3, "tp_size": 2, "pp_size": 1}), "world_size 3"),
    ("tp", config(mapping={"world_size": 3, "tp_size": 3, "pp_size": 1}), "tp_size 3"),
    ("awq", config(quantization={"quant_algo": "W4A16_AWQ"}), "W4A16_AWQ"),
    ("no-scales", config(quantization={"quant_algo": "FP8"}), "qkv.weights_scaling_factor"),
    ("architecture", config(architecture="MixtralForCausalLM"), "MixtralForCausalLM"),
    ("missing-key", config_text('"vocab_size"', '"vocabulary"'), '"vocab_size" is missing'),
    ("nan", config_text("1e-05", "NaN"), "NaN"),
    ("dtype", config(dtype="float8"), "'float8'"),
]


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    variant = Variant("gqa")
    return save_model(make_model(variant), variant, tmp_path_factory.mktemp("bad") / "hf")


@pytest.fixture(scope="module")
def checkpoint(hf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(hf, tmp_path_factory.mktemp("bad") / "ckpt", tp_size=2)


@pytest.mark.parametrize(
    ("change", "named"), [c[1:] for c in HF_CASES], ids=[c[0] for c in HF_CASES]
)
def test_a_bad_model_is_refused(change: Change, named: str, hf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(hf, folder)
    change(folder)
    with pytest.raises(UsageError) as caught:
        convert(folder, tmp_path / "out")
    assert named in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert not (tmp_path / "out").exists()
    if named not in ("no config.json", "is not JSON", "NaN") and (shown := inspected(folder)):
        assert any(named in problem for problem in shown["problems"])


@pytest.mark.parametrize(
    ("change", "named"), [c[1:] for c in CHECKPOINT_CASES], ids=[c[0] for c in CHECKPOINT_CASES]
)
def test_a_bad_checkpoint_is_refused(
    change: Change, named: str, checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "ckpt"
    shutil.copytree(checkpoint, folder)
    change(folder)
    with pytest.raises(UsageError) as caught:
        build_engine(folder, tmp_path / "out", BuildSettings())
    assert named in caught.value.message
    assert caught.value.hint
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError):
        Checkpoint.open(folder)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"tp_size": 3}, "tp_size 3 does not divide num_attention_heads 4"),
        ({"tp_size": 8}, "tp_size 8"),
        ({"pp_size": 3}, "pp_size 3 does not divide num_hidden_layers 2"),
        ({"tp_size": 0}, "--tp-size is 0"),
        ({"dtype": "int3"}, "'int3'"),
    ],
)
def test_a_bad_request_is_refused(
    keys: dict[str, Any], named: str, hf: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        convert(hf, tmp_path / "out", **keys)
    assert named in caught.value.message
    assert not any(tmp_path.iterdir())


def test_a_value_too_large_for_float16_names_its_tensor(hf: Path, tmp_path: Path) -> None:
    shutil.copytree(hf, tmp_path / "model")
    tensors("model.safetensors", lambda t: t[Q].view(-1)[5].fill_(1e6))(tmp_path / "model")
    with pytest.raises(UsageError, match=f"{Q} holds 1e.06") as caught:
        convert(tmp_path / "model", tmp_path / "out", dtype="float16")
    assert "bfloat16" in str(caught.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_shard_that_is_missing_or_outside_is_named(tmp_path: Path) -> None:
    variant = Variant("sharded", weights="sharded")
    folder = save_model(make_model(variant), variant, tmp_path / "model")
    index = folder / "model.safetensors.index.json"
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.rename(tmp_path / "away")
    with pytest.raises(UsageError, match=f"lacks the shard {shard.name}"):
        convert(folder, tmp_path / "out")
    index.write_text(index.read_text().replace(shard.name, "../away"))
    with pytest.raises(UsageError, match=r"names \.\./away"):
        convert(folder, tmp_path / "out")


def test_a_checkpoint_is_not_converted_again(tmp_path: Path) -> None:
    model = save_model(make_model(Variant("gqa")), Variant("gqa"), tmp_path / "hf")
    convert(model, tmp_path / "ckpt")
    with pytest.raises(UsageError, match="ckpt is not a Hugging Face model but a trtla checkpoint"):
        convert(tmp_path / "ckpt", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_an_index_says_where_tensors_are(tmp_path: Path) -> None:
    """Other files in the folder, and other tensors in its files, are none of the model's."""
    variant = Variant("sharded", weights="sharded")
    folder = save_model(make_model(variant), variant, tmp_path / "model")
    before = convert(folder, tmp_path / "before")
    first, second = sorted(folder.glob("model-*.safetensors"))[:2]
    shutil.copy(first, folder / "model.safetensors")  # and one of another form
    name, tensor = next(iter(load_file(first).items()))
    save_file({**load_file(second), name: tensor + 1}, second)
    after = convert(folder, tmp_path / "after")
    rank = "rank0.safetensors"
    assert (before / rank).read_bytes() == (after / rank).read_bytes()
    index = folder / "model.safetensors.index.json"
    data = json.loads(index.read_text())
    data["weight_map"][name.replace("layers.0", "layers.1")] = first.name
    data["weight_map"]["model.odd"] = first.name
    index.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=f"{first.name} lacks tensor model"):
        convert(folder, tmp_path / "out")
