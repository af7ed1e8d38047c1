"""gpt-oss: its experts in MXFP4 as its own files hold them, and its sinks in texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.support.compiled import needs_compiler
from tests.support.families import folder_and_model, gguf_file, logits_of
from trtla import LLM, SamplingParams
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.errors import UsageError
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.gguf.folder import model_folder
from trtla.formats.hf import HFModel
from trtla.settings.drafting import NO_DRAFTER

NAME, KIND = "gpt-oss", gguf.GGMLQuantizationType.MXFP4
TEXT = tuple(np.random.default_rng(1).integers(3, 90, 60).tolist())
PROMPTS = [[7, 9, 11], [5, 60, 8, 21, 3, 77, 40], [*TEXT[:40]]]
DECLARED = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}


def apart(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of weights [experts, outputs, inputs] as OpenAI's files hold them."""
    blocks = gguf.quantize(weights.numpy(), KIND).reshape(*weights.shape[:2], -1, 17)
    halves = np.concatenate((blocks[..., 1:] & 15, blocks[..., 1:] >> 4), -1)
    codes = halves[..., ::2] | halves[..., 1::2] << 4
    return torch.from_numpy(codes), torch.from_numpy(blocks[..., 0].copy())


def mxfp4_folder(folder: Path) -> Path:
    """The model as OpenAI and transformers write it."""
    source = folder_and_model(NAME)[0]
    folder.mkdir()
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith(("gate_up_proj", "down_proj")):
            blocks = apart(tensor.mT.contiguous())
            tensors |= dict(zip((f"{name}_blocks", f"{name}_scales"), blocks, strict=True))
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config |= {"quantization_config": DECLARED}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def in_experts(kind: str, end: str = "weight") -> Callable[[str], str]:
    """The type of a GGUF file's tensors, of which experts' have another."""
    return lambda name: kind if name.endswith(f"exps.{end}") else "F32"


@needs_compiler
@pytest.mark.parametrize("compiled", ["1", "0"])
def test_a_folder_in_mxfp4_has_the_logits_of_transformers(
    compiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers reads the folder with code of its own."""
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    folder = mxfp4_folder(tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        quantization_config=transformers.Mxfp4Config(dequantize=True),
        attn_implementation="eager",
    )
    with torch.no_grad():
        expected = model.float().eval()(torch.tensor([TEXT])).logits[0, 30:]
    found = logits_of(folder, TEXT, 30)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@needs_compiler
def test_blocks_are_the_same_from_a_folder_a_gguf_file_and_a_checkpoint(tmp_path: Path) -> None:
    folder = mxfp4_folder(tmp_path / "model")
    convert(folder, tmp_path / "checkpoint")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", BuildSettings(), backend="torch")
    file = gguf_file(NAME, tmp_path / "model.gguf", in_experts("MXFP4"))
    models = [HFModel.open(path) for path in (folder, model_folder(file))]
    assert [model.quantized for model in models] == [("MXFP4",)] * 2
    for name in models[0].config.block_types:
        rows = [model.read(name, 5, 30) for model in models]
        assert np.array_equal(*rows), name
    with LLM(folder) as llm, LLM(tmp_path / "engine") as other:
        texts = [each.generate(PROMPTS, SamplingParams(20)) for each in (llm, other)]
    assert [one.output_ids for one in texts[0]] == [one.output_ids for one in texts[1]]


@needs_compiler
@pytest.mark.parametrize("compiled", ["1", "0"])
def test_drafts_change_no_text(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, sinks and biases for single tokens and trees."""
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    with LLM(folder_and_model(NAME)[0], dtype="float32", max_seq_len=120) as llm:
        alone = [llm.generate([p], SamplingParams(40), drafter=NO_DRAFTER)[0] for p in PROMPTS]
        drafted = llm.generate(PROMPTS, SamplingParams(40))
    assert [one.output_ids for one in drafted] == [one.output_ids for one in alone]


def test_blocks_that_nothing_declares_are_refused(tmp_path: Path) -> None:
    folder = mxfp4_folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"the weights are quantised \(tensor .*scales\)"):
        HFModel.open(folder)


def test_biases_in_blocks_are_refused(tmp_path: Path) -> None:
    file = gguf_file(NAME, tmp_path / "model.gguf", in_experts("Q8_0", "bias"))
    with pytest.raises(UsageError, match=r"tensor blk.*exps.bias is a vector in Q8_0"):
        model_folder(file)


def test_limits_of_another_family_are_refused(tmp_path: Path) -> None:
    config = json.loads((folder_and_model("qwen3-moe")[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "swiglu_limit": 7.0}))
    with pytest.raises(UsageError, match=r'"swiglu_limit" 7\.0 is not supported in a Qwen3Moe'):
        HFModel.open(tmp_path)
