"""The checkpoint's files against TensorRT-LLM's table, with numbers written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.support.models import Variant, make_model, save_model
from tests.support.tensors import equal
from trtla.build.convert import convert

GQA = Variant("gqa", {"num_hidden_layers": 4, "attention_bias": True, "mlp_bias": True})
# vocabulary 101, hidden 64, intermediate 96, 4 query heads, 2 K/V heads of 16


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model(GQA), GQA, tmp_path_factory.mktemp("layout") / "hf")


@pytest.fixture(scope="module")
def split(hf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tp 4 above 2 K/V heads, pp 2."""
    target = tmp_path_factory.mktemp("layout") / "ckpt"
    convert(hf, target, dtype="float32", tp_size=4, pp_size=2)
    return target


LAYER = {
    "input_layernorm.weight": (64,),
    "attention.qkv.weight": (48, 64),  # (4 + 2 * max(2, 4)) * 16 / 4
    "attention.qkv.bias": (48,),
    "attention.dense.weight": (64, 16),
    "attention.dense.bias": (64,),
    "post_layernorm.weight": (64,),
    "mlp.fc.weight": (24, 64),
    "mlp.fc.bias": (24,),
    "mlp.gate.weight": (24, 64),
    "mlp.gate.bias": (24,),
    "mlp.proj.weight": (64, 24),
    "mlp.proj.bias": (64,),
}


@pytest.mark.parametrize("rank", range(8))
def test_every_rank_holds_exactly_the_tensors_of_the_table(split: Path, rank: int) -> None:
    expected = {f"transformer.layers.{i}.{k}": v for i in range(2) for k, v in LAYER.items()}
    if rank < 4:
        expected["transformer.vocab_embedding.weight"] = (101, 64)
    else:
        expected["transformer.ln_f.weight"] = (64,)
        expected["lm_head.weight"] = (26, 64)  # ceil(101 / 4)
    tensors = load_file(split / f"rank{rank}.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == expected
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


def test_rows_are_where_the_table_puts_them(hf: Path, split: Path) -> None:
    model = load_file(hf / "model.safetensors")
    ranks = [load_file(split / f"rank{r}.safetensors") for r in range(8)]
    q = model["model.layers.3.self_attn.q_proj.weight"]
    k = model["model.layers.3.self_attn.k_proj.bias"]
    for r in range(4):
        part = ranks[4 + r]  # layer 3 is local layer 1 of the second stage
        assert equal(
            part["transformer.layers.1.attention.qkv.weight"][:16], q[16 * r : 16 * r + 16]
        )
        head = r // 2  # heads 0,0,1,1
        assert equal(
            part["transformer.layers.1.attention.qkv.bias"][16:32], k[16 * head : 16 * head + 16]
        )
    gate, up = (model[f"model.layers.0.mlp.{n}_proj.weight"] for n in ("gate", "up"))
    assert equal(ranks[1]["transformer.layers.0.mlp.fc.weight"], gate[24:48])
    assert equal(ranks[1]["transformer.layers.0.mlp.gate.weight"], up[24:48])
    down = model["model.layers.0.mlp.down_proj.weight"]
    assert equal(ranks[2]["transformer.layers.0.mlp.proj.weight"], down[:, 48:72])
    head = ranks[7]["lm_head.weight"]
    assert equal(head[:23], model["lm_head.weight"][78:])
    assert not head[23:].any()


def test_config_json_has_tensorrt_llms_keys_and_the_portable_mapping(split: Path) -> None:
    config = json.loads((split / "config.json").read_text())
    assert config["mapping"] == {"world_size": 8, "gpus_per_node": 8, "tp_size": 4, "pp_size": 2}
    assert config["quantization"] == {"quant_algo": None, "kv_cache_quant_algo": None}
    expected = {
        "architecture": "LlamaForCausalLM",
        "dtype": "float32",
        "logits_dtype": "float32",
        "vocab_size": 101,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,  # the model's own, not the copies
        "head_size": 16,
        "intermediate_size": 96,
        "hidden_act": "silu",
        "norm_epsilon": 1e-5,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": 16,
        "rotary_base": 10000.0,
        "rotary_scaling": None,
        "attn_bias": True,
        "mlp_bias": True,
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "tie_word_embeddings": False,
    }
    assert {key: config[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("stored", "asked", "expected"),
    [
        ("float32", "auto", torch.float16),
        ("bfloat16", "auto", torch.bfloat16),
        ("float16", "auto", torch.float16),
        ("bfloat16", "float32", torch.float32),
    ],
)
def test_dtype_auto_keeps_the_models_but_halves_float32(
    stored: str, asked: str, expected: torch.dtype, tmp_path: Path
) -> None:
    variant = Variant("gqa")
    model = make_model(variant).to(getattr(torch, stored))
    save_model(model, variant, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "ckpt", dtype=asked)
    norm = "transformer.ln_f.weight"
    with safe_open(tmp_path / "ckpt" / "rank0.safetensors", "pt") as file:
        assert equal(file.get_tensor(norm), model.model.norm.weight.to(expected))
        assert file.get_tensor(norm).dtype == expected


def test_tokenizer_files_travel_and_end_ids_of_config_json_are_kept(tmp_path: Path) -> None:
    variant = Variant("gqa", {"eos_token_id": [5, 7]})
    hf = save_model(make_model(variant), variant, tmp_path / "hf")
    (hf / "generation_config.json").write_text('{"temperature": 0.6}')
    for name in ("tokenizer.json", "chat_template.jinja", "README.md"):
        (hf / name).write_text("{}")
    written = {path.name for path in convert(hf, tmp_path / "ckpt").iterdir()}
    assert written - {"config.json", "rank0.safetensors"} == {
        "tokenizer.json",
        "chat_template.jinja",
        "generation_config.json",
    }
    generation = json.loads((tmp_path / "ckpt" / "generation_config.json").read_text())
    assert generation == {"temperature": 0.6, "eos_token_id": [5, 7]}


def test_progress_counts_every_byte_once(hf: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    written = convert(hf, tmp_path / "ckpt", progress=lambda *call: calls.append(call))
    tensors = load_file(written / "rank0.safetensors").values()
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    done = [call[0] for call in calls]
    assert done == sorted(set(done))
    assert calls[-1] == (total, total)
    assert {of for _, of in calls} == {total}
