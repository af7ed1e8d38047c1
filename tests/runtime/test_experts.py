"""The choice of experts, in PyTorch and compiled: ties, shares, and bits that no other token
changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.compiled import needs_compiler
from tests.support.families import OTHERS, folder_and_model, gguf_file, logits_of, make_model
from tests.support.fp8_folders import COMPRESSED, STATIC, declare
from tests.support.gguf_models import state
from trtla import LLM, SamplingParams
from trtla.build.convert import convert
from trtla.build.quantize import Calibration
from trtla.errors import TrtlaError, UsageError
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.config import Mapping
from trtla.formats.gguf.folder import model_folder
from trtla.formats.hf import HFModel
from trtla.formats.hf_config import read_hf_config
from trtla.formats.model import Model
from trtla.formats.support import check_mapping
from trtla.runtime.models.mlp import Choice, Experts
from trtla.settings.drafting import NO_DRAFTER

PROMPTS = [[7, 9, 11], [5, 60, 8, 21, 3, 77, 40], [90, 2, 33, 14, 58]]
"""Of lengths that share steps with each other in different ways."""


def experts(router: torch.Tensor, per_token: int, of_chosen: bool) -> Experts:
    return Experts(router, (), Choice(per_token, of_chosen))


def test_of_equal_experts_the_first_ones_are_chosen() -> None:
    router = torch.zeros(6, 2)
    router[4, 0] = 1.0
    chosen, shares = experts(router, 3, True).routed(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert chosen.tolist() == [[4, 0, 1], [0, 1, 2]]
    assert shares[1].tolist() == pytest.approx([1 / 3] * 3)


def test_shares_are_of_the_chosen_experts_or_of_all() -> None:
    router, states = torch.randn(8, 4), torch.randn(5, 4)
    whole = torch.softmax(states @ router.t(), -1)
    chosen, shares = experts(router, 3, False).routed(states)
    torch.testing.assert_close(shares, whole.gather(-1, chosen))
    _, scaled = experts(router, 3, True).routed(states)
    torch.testing.assert_close(scaled, shares / shares.sum(-1, keepdim=True))


def changed_routers(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    """A model with other routers, written into an empty folder."""
    for file in folder_and_model("qwen3-moe")[0].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    routers = {name: change(t) for name, t in tensors.items() if ".mlp.gate." in name}
    assert routers
    save_file({**tensors, **routers}, folder / "model.safetensors", {"format": "pt"})
    return folder


@needs_compiler
def test_equal_routers_choose_the_same_compiled_and_in_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All experts are equally good: only the rule for ties decides the texts."""
    changed_routers(tmp_path, torch.zeros_like)
    texts = []
    for compiled in "01":
        monkeypatch.setenv("TRTLA_COMPILED", compiled)
        with LLM(tmp_path, dtype="float32") as llm:
            answers = llm.generate(PROMPTS, SamplingParams(20), drafter=NO_DRAFTER)
        texts.append([one.output_ids for one in answers])
    assert texts[0] == texts[1]


@needs_compiler
@pytest.mark.parametrize("compiled", ["1", "0"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_router_that_is_not_finite_in_one_row_leaves_no_answer(
    number: str, compiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its expert is not among the first, which would be chosen where NaN is below everything."""

    def broken(router: torch.Tensor) -> torch.Tensor:
        return torch.cat([router[:-1], torch.full_like(router[-1:], float(number))])

    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    with (
        LLM(changed_routers(tmp_path, broken), dtype="float32") as llm,
        pytest.raises(TrtlaError, match="not finite"),
    ):
        llm.generate(PROMPTS[:1], SamplingParams(4))


def with_another_type(name: str) -> str:
    """The types of a file whose shared expert has another one than its experts."""
    return "Q8_0" if "shexp" in name else "F32" if name.endswith("bias") else "Q4_0"


@needs_compiler
@pytest.mark.parametrize(
    ("name", "kind"),
    [("qwen3-moe", "Q8_0"), ("gpt-oss", "MXFP4"), ("qwen2-moe", with_another_type)],
)
def test_a_tokens_bits_do_not_depend_on_its_neighbours(
    name: str, kind: str | Callable[[str], str], tmp_path: Path
) -> None:
    """Margins show every bit of the logits that decide."""
    file = gguf_file(name, tmp_path / "model.gguf", kind)
    params = [SamplingParams(24, 0.9, seed=seed) for seed in range(len(PROMPTS))]
    with LLM(file, max_seq_len=96, max_batch_size=3) as llm:
        alone = [
            llm.generate([prompt], [how], drafter=NO_DRAFTER, margins=True)[0]
            for prompt, how in zip(PROMPTS, params, strict=True)
        ]
        together = llm.generate(PROMPTS, params, margins=True)
    assert [one.output_ids for one in together] == [one.output_ids for one in alone]
    assert [one.margins for one in together] == [one.margins for one in alone]


@pytest.mark.parametrize("part", ["gate_proj", "down_proj"])
@pytest.mark.parametrize("kind", ["Q8_0", None])
def test_experts_of_a_layer_are_of_one_type(part: str, kind: str | None, tmp_path: Path) -> None:
    file, folder = gguf_file("qwen3-moe", tmp_path / "model.gguf", "Q4_0"), tmp_path / "ckpt"
    convert(file, folder)
    config = json.loads((folder / "config.json").read_text())
    kinds = config["quantization"]["block_types"]
    name = f"model.layers.1.mlp.experts.2.{part}.weight"
    assert kinds.pop(name) == "Q4_0"
    kinds.update({name: kind} if kind else {})
    (folder / "config.json").write_text(json.dumps(config))
    other = kind or "no blocks"
    with pytest.raises(UsageError, match=f"0.{part}.weight and {name} .* in Q4_0 and {other}"):
        Checkpoint.open(folder)


def test_more_experts_than_a_router_has_are_refused_before_they_are_looked_for(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folder_and_model("qwen3-moe")[0], folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_experts": 10_000, "num_local_experts": 10_000}
    (folder / "config.json").write_text(json.dumps(config))
    said = r"layers.0.mlp.gate.weight is of 8 experts, and its config has 10000"
    with pytest.raises(UsageError, match=said):
        HFModel.open(folder)


@pytest.mark.parametrize("quantization", [COMPRESSED, STATIC])
def test_fp8_is_refused_by_name(quantization: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folder_and_model("qwen3-moe")[0], folder)
    with pytest.raises(UsageError, match="FP8 in a mixture of experts is not supported") as refused:
        read_hf_config(declare(folder, quantization))
    assert "convert" not in str(refused.value.hint)


def test_hints_name_no_conversion_that_mixtures_lack(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folder_and_model("qwen3-moe")[0], folder)
    with pytest.raises(UsageError, match="gptq 4 bits") as refused:
        read_hf_config(declare(folder, {"quant_method": "gptq", "bits": 4}))
    hint = str(refused.value.hint)
    assert "fp8" not in hint
    assert "convert --dtype int8 or int4" in hint
    config = Model.at(gguf_file("qwen3-moe", tmp_path / "m.gguf", "Q4_0")).config
    with pytest.raises(UsageError, match="are not split") as refused:
        check_mapping(config.model_copy(update={"mapping": Mapping(world_size=2, tp_size=2)}))
    assert "convert" not in str(refused.value.hint)


def test_calibration_is_refused_by_name(tmp_path: Path) -> None:
    folder = folder_and_model("qwen3-moe")[0]
    with pytest.raises(UsageError, match="calibration of a mixture of experts is not supported"):
        convert(folder, tmp_path / "out", dtype="int4", calibration=Calibration(PROMPTS))
    assert not (tmp_path / "out").exists()


@needs_compiler
@pytest.mark.deep
@pytest.mark.parametrize("compiled", ["1", "0"])
@pytest.mark.parametrize("name", ["qwen3-moe", "qwen2-moe", "gpt-oss"])
def test_ranks_split_the_width_of_experts(
    name: str, compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And shared experts, sinks and biases."""
    monkeypatch.setenv("TRTLA_COMPILED", compiled)
    texts = []
    for ranks in (1, 2):
        with LLM(folder_and_model(name)[0], dtype="float32", tp_size=ranks) as llm:
            answers = llm.generate(PROMPTS, SamplingParams(20))
        texts.append([one.output_ids for one in answers])
    assert texts[0] == texts[1]


def test_layers_that_predict_further_tokens_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """GLM's files have one behind the last layer."""
    source, model = folder_and_model("glm4-moe")
    folder = tmp_path / "model"
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    first, behind = "model.layers.1.", "model.layers.3."
    names = [name for name in tensors if name.startswith(first)]
    more = {name.replace(first, behind): tensors[name].clone() for name in names}
    more["model.layers.3.eh_proj.weight"] = tensors["lm_head.weight"].clone()
    save_file({**tensors, **more}, folder / "model.safetensors", {"format": "pt"})
    weights = state(model, "glm4moe")
    file = gguf_file(
        "glm4-moe",
        tmp_path / "model.gguf",
        keys={**OTHERS["glm4-moe"].gguf_keys, "block_count": 4, "nextn_predict_layers": 1},
        tensors={
            "blk.3.nextn.eh_proj.weight": np.zeros((64, 128), np.float32),
            **{f"blk.3{n[5:]}": array for n, array in weights.items() if n.startswith("blk.1.")},
        },
    )
    configs = [HFModel.open(path).config for path in (folder, model_folder(file))]
    assert [config.num_hidden_layers for config in configs] == [3, 3]
    assert [config.dense_layers for config in configs] == [(0,), (0,)]
    assert "41 tensors that texts do not need: model.layers.3.*" in caplog.text


@pytest.mark.parametrize("says", [True, False, None])
def test_a_gguf_file_says_whether_shares_are_of_the_chosen_experts(
    says: bool | None, tmp_path: Path
) -> None:
    """llama.cpp takes a file that says nothing for one that says no."""
    keys = {**OTHERS["glm4-moe"].gguf_keys, "expert_weights_norm": says}
    known = {key: value for key, value in keys.items() if value is not None}
    file = gguf_file("glm4-moe", tmp_path / "model.gguf", keys=known)
    assert HFModel.open(model_folder(file)).config.norm_topk_prob is bool(says)


@pytest.mark.parametrize(("dense", "expert"), [(512, 32), (64, 512)])
def test_dense_layers_may_be_of_another_width_than_shared_experts(
    dense: int, expert: int, tmp_path: Path
) -> None:
    """Prompts whose inputs are made before the products, for all layers of a step."""
    glm = OTHERS["glm4-moe"]
    sizes = {"intermediate_size": dense, "moe_intermediate_size": expert}
    model = make_model(replace(glm, keys={**glm.keys, **sizes}))
    model.save_pretrained(tmp_path)
    text = tuple((7 * i + i * i) % 101 for i in range(80))
    with torch.no_grad():
        expected = model(torch.tensor([text])).logits[0, 70:]
    found = logits_of(tmp_path, text, 70)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_only_layers_that_predict_tokens_are_left_out(tmp_path: Path) -> None:
    keys = {**OTHERS["glm4-moe"].gguf_keys, "block_count": 1}
    file = gguf_file("glm4-moe", tmp_path / "model.gguf", keys=keys)
    with pytest.raises(UsageError, match=r"blk\.1\."):
        HFModel.open(model_folder(file))


def test_a_stack_is_not_stored_in_two_forms(tmp_path: Path) -> None:
    source, _ = folder_and_model("gpt-oss")
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if name.endswith("experts.gate_up_proj"))
    blocks = {f"{name}_blocks": tensors[name].clone()}
    save_file({**tensors, **blocks}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=r"gate_up_proj\.weight twice"):
        HFModel.open(tmp_path)


@pytest.mark.parametrize("part", ["gate_up_proj", "gate_up_proj_bias"])
def test_the_dimensions_of_a_stack_are_in_order(part: str, tmp_path: Path) -> None:
    source, _ = folder_and_model("gpt-oss")
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if name.endswith(f"experts.{part}"))
    turned = {**tensors, name: tensors[name].transpose(0, 1).contiguous()}
    save_file(turned, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=r"is of 64 experts"):
        HFModel.open(tmp_path)
