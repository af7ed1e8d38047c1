"""One sentence about each bad head, before its tensors are read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.heads import Change, at, edit, head_path, tensors, write_head
from trtla.errors import UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.heads.reading import read_head
from trtla.formats.hf_config import read_hf_config

IDS = "eagle_aux_hidden_state_layer_ids"
INSIDE = f"eagle_config__{IDS}"


@pytest.fixture(scope="module")
def target(tiny_llama: Path) -> CheckpointConfig:
    """The config of the model that heads of the default sizes fit."""
    return read_hf_config(tiny_llama)[0]


FP8 = torch.zeros(96, 256).to(torch.float8_e4m3fn)
OTHERS = {
    "an EAGLE-1 or EAGLE-2 head": edit(architectures=["EagleLlamaForCausalLM"]),
    "a P-EAGLE head": edit(architectures=["PEagleDraftModel"], num_hidden_layers=4),
    "a DFlash drafter": edit(architectures=["DFlashDraftModel"]),
    "a DSpark drafter": edit(architectures=["DSparkDraftModel"]),
    "layers that predict more tokens (MTP)": edit(architectures=["DeepSeekMTPModel"]),
    "an EAGLE-3 head with latent attention (MLA)": tensors(
        midlayer__self_attn__kv_a_proj_with_mqa__weight=torch.zeros(4, 4)
    ),
    "an EAGLE-3 head whose queries and keys are normalised": tensors(
        midlayer__self_attn__q_norm__weight=torch.ones(64)
    ),
    "an EAGLE-3 head with biases": tensors(midlayer__self_attn__q_proj__bias=torch.ones(256)),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_kind_of_drafter_is_named(kind: str, tmp_path: Path) -> None:
    path = write_head(tmp_path / "head", change=OTHERS[kind])
    with pytest.raises(UsageError) as caught:
        read_head(path)
    assert caught.value.message == f"{path} holds {kind}, which trtla does not read"
    assert "--drafter draft:PATH" in str(caught.value.hint)


def test_a_whole_model_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a whole model \(LlamaForCausalLM\), not a") as caught:
        read_head(tiny_llama)
    assert caught.value.hint == f"use --drafter draft:{tiny_llama}"

    def eagle_1(config: dict[str, Any], stored: dict[str, Any]) -> None:
        config.pop("draft_vocab_size")
        config["architectures"] = ["LlamaForCausalLM"]
        del stored["midlayer.hidden_norm.weight"]

    with pytest.raises(UsageError, match="holds an EAGLE-1 or EAGLE-2 head"):
        read_head(write_head(tmp_path / "head", change=eagle_1))


BAD: dict[str, tuple[str, dict[str, Any], Change | None, str]] = {
    "other vocabulary": ("specforge", {"vocab_size": 512}, None, "of 512, and the model has 2048"),
    "other width": ("specforge", {"target_hidden_size": 64}, None, "lacks tensor embed_tokens"),
    "other target": (
        "specforge",
        {"target_hidden_size": 64, "embedding": True},
        None,
        "hidden_size of 64, and the model has 256",
    ),
    "heads": ("specforge", {}, edit(num_attention_heads=8, head_dim=64), "asks for [512, 512]"),
    "odd heads": ("specforge", {}, edit(num_key_value_heads=3), "num_key_value_heads 3"),
    "fc": (
        "specforge",
        {},
        edit(**{INSIDE: [2, 3, 4, 5]}),
        "fc has 768 inputs, and 4 layers of 256 numbers give 1024",
    ),
    "layers fall": ("specforge", {}, edit(**{INSIDE: [2, 4, 3]}), "has layers 2, 4, 3"),
    "layer 0": ("specforge", {}, edit(**{INSIDE: [0, 3, 4]}), "has layers 0, 3, 4"),
    "layer 9": ("specforge", {}, edit(**{INSIDE: [2, 3, 9]}), "reads layer 9, and the model has 5"),
    "layers of text": ("specforge", {}, edit(**{INSIDE: "234"}), f'"{IDS}" is "234"'),
    "no layers": ("specforge", {"boundaries": None}, None, "in a model of 5 layers"),
    "missing": ("specforge", {}, tensors(norm__weight=None), "lacks tensor norm.weight"),
    "unknown": ("specforge", {}, tensors(gate__weight=torch.ones(2)), "holds tensor gate.weight"),
    "twice": (
        "specforge",
        {},
        tensors(model__norm__weight=torch.ones(256)),
        "holds tensor norm.weight twice",
    ),
    "shape": (
        "speculators",
        {},
        tensors(layers__0__mlp__up_proj__weight=torch.ones(2, 2)),
        "layers.0.mlp.up_proj.weight has shape [2, 2], config.json asks for [96, 256]",
    ),
    "float8": (
        "specforge",
        {},
        tensors(midlayer__mlp__up_proj__weight=FP8),
        "midlayer.mlp.up_proj.weight is float8_e4m3fn",
    ),
    "int4": (
        "specforge",
        {},
        tensors(midlayer__mlp__up_proj__qweight=torch.ones(4, 4, dtype=torch.int32)),
        "holds tensor midlayer.mlp.up_proj.qweight",
    ),
    "no d2t": ("specforge", {}, tensors(d2t=None, t2d=None), "lacks tensor d2t"),
    "counted d2t": ("specforge", {}, tensors(d2t=torch.arange(96)), "d2t counts from 0 to 95"),
    "far d2t": ("specforge", {}, tensors(d2t=at(95, 9999)), "maps token 95 to 10094"),
    "negative d2t": ("specforge", {}, tensors(d2t=at(3, -9)), "maps token 3 to -6"),
    "double d2t": ("specforge", {}, tensors(d2t=at(95, -95)), "d2t"),
    "float d2t": ("specforge", {}, tensors(d2t=lambda t: t.float()), "d2t is float32"),
    "short d2t": ("specforge", {}, tensors(d2t=lambda t: t[:9].clone()), "d2t has shape [9]"),
    "other t2d": (
        "specforge",
        {},
        tensors(t2d=lambda t: ~t),
        "t2d has token 0, and d2t has not",
    ),
    "more tokens": ("specforge", {}, edit(draft_vocab_size=9999), '"draft_vocab_size" is 9999'),
    "both norms": (
        "specforge",
        {"fc_norm": True},
        edit(norm_before_fc=True),
        '"fc_norm" is true, and so is "norm_before_fc"',
    ),
    "flag alone": ("specforge", {}, edit(fc_norm=True), 'no tensor fc_norm.0.weight'),
    "norm alone": (
        "speculators",
        {"input_norm": True},
        edit(norm_before_fc=False),
        '"norm_before_fc" is not true',
    ),
    "unknown norm": ("specforge", {}, edit(use_aux_norm=True), '"use_aux_norm" is true'),
    "a flag of text": ("specforge", {}, edit(fc_norm="yes"), '"fc_norm" is "yes"'),
    "gelu": ("specforge", {}, edit(hidden_act="gelu"), '"hidden_act" is "gelu"'),
    "biases": ("specforge", {}, edit(attention_bias=True), '"attention_bias" is true'),
    "two layers": ("specforge", {}, edit(num_hidden_layers=2), '"num_hidden_layers" is 2'),
    "Gemma": ("specforge", {}, edit(model_type="gemma3"), '"model_type" is "gemma3"'),
    "rope": (
        "specforge",
        {"rope_scaling": {"rope_type": "spiral", "factor": 2.0}},
        None,
        "rope scaling spiral is not supported",
    ),
    "no size": ("specforge", {}, edit(vocab_size=None), '"vocab_size" is null'),
    "gguf layers": ("gguf", {}, edit(extract_layers=[2, 3]), "eagle3.extract_layers is [2, 3]"),
    "gguf d2t": ("gguf", {}, tensors(d2t=lambda t: t.astype(np.int32)), "d2t is I32"),
    "gguf named d2t": (
        "gguf",
        {},
        lambda _, t: t.update({"d2t.weight": t.pop("d2t").astype(np.float32)}),
        "d2t.weight",
    ),
    "gguf offsets": ("gguf", {}, tensors(d2t=lambda t: t - np.arange(96)), "d2t maps several"),
    "gguf first": ("gguf", {}, tensors(d2t=np.arange(96)), "to the first ones"),
    "gguf target": (
        "gguf",
        {},
        edit(target_hidden_size=None),
        "lacks the key eagle3.target_hidden_size",
    ),
    "gguf norm": ("gguf", {}, edit(norm_output=True), "eagle3.norm_output is True"),
    "gguf llama": (
        "gguf",
        {},
        edit(**{"general.architecture": "llama"}),
        "is a whole model (llama), not a head",
    ),
    "gguf dflash": (
        "gguf",
        {},
        edit(**{"general.architecture": "dflash"}),
        "holds a DFlash drafter",
    ),
    "medusa width": ("medusa", {"hidden_size": 64}, None, "of 64, and the model has 256"),
    "medusa config": ("medusa", {}, edit(vocab_size=9), '"vocab_size" is 9, and the heads have'),
    "medusa hole": (
        "medusa",
        {},
        lambda _, t: [t.pop(name) for name in list(t) if name.startswith("1.")],
        "lacks tensor 1.0.weight",
    ),
    "medusa without lm_head": ("medusa", {}, lambda _, t: t.pop("0.1.weight"), "lm_head of head 0"),
    "medusa shape": ("medusa", {}, lambda _, t: t.update({"0.0.linear.bias": 2 * t["0.1.weight"]}),
                     "0.0.linear.bias has shape [2048, 256]"),
    "medusa map": ("medusa", {}, lambda _, t: t.update(token_map=torch.ones(4)), "token_map"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_head_is_refused_by_its_headers(
    name: str, tmp_path: Path, target: CheckpointConfig
) -> None:
    style, sizes, change, says = BAD[name]
    path = write_head(head_path(tmp_path, style), style, change=change, **sizes)
    with pytest.raises(UsageError) as caught:
        read_head(path, target=target)
    assert says in caught.value.message
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("style", ["specforge", "gguf"])
def test_numbers_that_are_none_are_refused_when_they_are_read(
    style: str, value: float, tmp_path: Path
) -> None:
    path = write_head(
        head_path(tmp_path, style), style, change=tensors(fc__weight=at(70_000, value))
    )
    head = read_head(path)
    head.tensor("q")
    with pytest.raises(UsageError, match=r"tensor fc\.weight holds NaN or infinities"):
        head.tensor("fc")


class Code:
    """Code that runs where a pickle is loaded without care."""

    def __reduce__(self) -> Any:
        return print, ("it ran",)


def spoilt(path: Path, how: str) -> None:
    weights = path / "model.safetensors"
    if how == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "lying":
        data = bytearray(weights.read_bytes())
        data[:8] = (2**40).to_bytes(8, "little")
        weights.write_bytes(data)
    elif how == "pickled":
        torch.save({"fc.weight": Code()}, path / "pytorch_model.bin", pickle_module=pickle)
        weights.unlink()
    elif how == "medusa code":
        torch.save({"0.0.linear.weight": Code()}, path / "medusa_lm_head.pt")
    elif how == "outside":
        index = {"weight_map": dict.fromkeys(load_file(weights), "../x.safetensors")}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
        weights.unlink()
    elif how == "no weights":
        weights.unlink()
    else:
        (path / "config.json").write_text("[]")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("truncated", "truncated"),
        ("lying", "truncated or not safetensors"),
        ("pickled", "objects other than tensors"),
        ("medusa code", "objects other than tensors"),
        ("outside", "outside the folder"),
        ("no weights", "has no weights"),
        ("no object", "holds no JSON object"),
    ],
)
def test_hostile_files_are_refused_as_models_are(
    how: str, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_head(tmp_path / "head")
    spoilt(path, how)
    with pytest.raises(UsageError, match=says):
        read_head(path)
    assert "it ran" not in capfd.readouterr().out
