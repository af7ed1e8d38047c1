"""The GGUF file for llama.cpp: metadata and tensors of every kind of Llama as `gguf` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.fp8_models import BIASED, to_fp8
from tests.support.gguf_models import TIED, mixed, model_of
from tests.support.gguf_models import write_gguf as write_model
from tests.support.models import BASE, LLAMA3, Variant, make_model
from tests.support.trtllm_engines import write_engine
from trtla.bench.gguf_file import write_gguf
from trtla.bench.sweep import readable_engine
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.errors import UsageError
from trtla.formats.engine import Engine, engine_from_hugging_face, open_engine
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.tensors import E4M3, without_blocks
from trtla.runtime.models.rotary import frequencies

gguf = pytest.importorskip("gguf")

SIZE, HEADS, KV_HEADS = 16, BASE["num_attention_heads"], BASE["num_key_value_heads"]


def engine(tmp_path: Path, **keys: Any) -> Engine:
    make_model(Variant("", keys)).save_pretrained(tmp_path / "model")
    return engine_from_hugging_face(tmp_path / "model")


def written(made: Engine, tmp_path: Path, dtype: torch.dtype = torch.float32) -> Any:
    write_gguf(tmp_path / "m.gguf", made, dtype)
    return gguf.GGUFReader(tmp_path / "m.gguf")


def tensors(reader: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {t.name: t.data.reshape(tuple(reversed(t.shape.tolist()))) for t in reader.tensors}


def neighbours(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Partners i and i + size / 2 of every head as rows 2i and 2i + 1, row by row."""
    order = [
        head * SIZE + half * SIZE // 2 + i
        for head in range(heads)
        for i in range(SIZE // 2)
        for half in (0, 1)
    ]
    return rows[order]


def test_every_tensor_has_its_place(tmp_path: Path) -> None:
    made = engine(tmp_path, attention_bias=True, mlp_bias=True)
    found = tensors(written(made, tmp_path))
    want = make_model(Variant("", {"attention_bias": True, "mlp_bias": True})).state_dict()
    expected = {
        "token_embd.weight": want["model.embed_tokens.weight"],
        "output_norm.weight": want["model.norm.weight"],
        "output.weight": want["lm_head.weight"],
    }
    places = {
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    for layer in range(2):
        hf, own = f"model.layers.{layer}.", f"blk.{layer}."
        expected[f"{own}attn_norm.weight"] = want[f"{hf}input_layernorm.weight"]
        expected[f"{own}ffn_norm.weight"] = want[f"{hf}post_attention_layernorm.weight"]
        for kind in ("weight", "bias"):
            for place, name in places.items():
                expected[f"{own}{place}.{kind}"] = want[f"{hf}{name}.{kind}"]
            for letter, heads in (("q", HEADS), ("k", KV_HEADS)):
                rows = want[f"{hf}self_attn.{letter}_proj.{kind}"]
                expected[f"{own}attn_{letter}.{kind}"] = neighbours(rows, heads)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor.numpy(), name)


def test_qwen2_has_its_own_architecture_and_order_of_rows(tmp_path: Path) -> None:
    model = make_model(Variant("", family="qwen2"))
    model.save_pretrained(tmp_path / "model")
    reader = written(engine_from_hugging_face(tmp_path / "model"), tmp_path)
    assert reader.fields["general.architecture"].contents() == "qwen2"
    assert reader.fields["qwen2.attention.head_count"].contents() == HEADS
    found, want = tensors(reader), model.state_dict()
    for letter in "qkv":
        for kind in ("weight", "bias"):
            rows = want[f"model.layers.1.self_attn.{letter}_proj.{kind}"].numpy()
            np.testing.assert_array_equal(found[f"blk.1.attn_{letter}.{kind}"], rows)


def test_metadata_is_the_models(tmp_path: Path) -> None:
    reader = written(engine(tmp_path, head_dim=24), tmp_path)
    told = {
        "block_count": 2, "context_length": 16, "embedding_length": 64, "feed_forward_length": 96,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 24,
        "attention.value_length": 24, "rope.dimension_count": 24, "rope.freq_base": 10000.0,
        "vocab_size": 101,
    }  # fmt: skip
    for key, value in told.items():
        assert reader.fields[f"llama.{key}"].contents() == value, key
    epsilon = reader.fields["llama.attention.layer_norm_rms_epsilon"].contents()
    assert epsilon == pytest.approx(1e-5)
    assert reader.fields["tokenizer.ggml.model"].contents() == "no_vocab"
    assert "llama.rope.scaling.type" not in reader.fields


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_matrices_have_the_type_and_vectors_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    made = engine(tmp_path)
    reader = written(made, tmp_path, dtype)
    kind = {torch.float16: "F16", torch.bfloat16: "BF16"}[dtype]
    assert {t.tensor_type.name for t in reader.tensors if len(t.shape) > 1} == {kind}
    assert {t.tensor_type.name for t in reader.tensors if len(t.shape) == 1} == {"F32"}
    (down,) = (t for t in reader.tensors if t.name == "blk.1.ffn_down.weight")
    stored = torch.from_numpy(np.array(down.data)).view(dtype)
    want = dict(made.weights())["transformer.layers.1.mlp.proj.weight"].to(dtype)
    assert torch.equal(stored, want)


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    found = tensors(written(engine(tmp_path, tie_word_embeddings=True), tmp_path))
    assert "output.weight" not in found
    assert "token_embd.weight" in found


def test_rotary_scalings(tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    fields = written(engine(tmp_path, rope_parameters=linear), tmp_path).fields
    assert fields["llama.rope.scaling.type"].contents() == "linear"
    assert fields["llama.rope.scaling.factor"].contents() == 2.0
    assert fields["llama.rope.freq_base"].contents() == 5e5

    made = engine(tmp_path, rope_parameters={**LLAMA3, "rope_theta": 5e5})
    factors = tensors(written(made, tmp_path))["rope_freqs.weight"]
    inverse = 1 / 5e5 ** (torch.arange(0, SIZE, 2) / SIZE)
    want = frequencies(made.config.pretrained_config)
    torch.testing.assert_close(inverse / torch.from_numpy(factors.copy()), want)
    assert factors.max() == pytest.approx(8.0)

    made = engine(tmp_path, rope_parameters={**linear, "rope_type": "dynamic"})
    with pytest.raises(UsageError, match="dynamic"):
        write_gguf(tmp_path / "d.gguf", made, torch.float32)


def test_weights_of_a_compiled_engine_are_those_of_its_hugging_face_model(tmp_path: Path) -> None:
    own = engine(tmp_path)
    compiled = open_engine(write_engine(tmp_path / "engine"))
    assert readable_engine(own, str(tmp_path)) is own
    model = readable_engine(compiled, str(tmp_path / "model"))
    assert set(dict(model.weights())) == set(dict(own.weights()))
    with pytest.raises(UsageError, match="no readable weights"):
        write_gguf(tmp_path / "m.gguf", readable_engine(compiled, None), torch.float32)


def test_fp8_weights_are_dequantised(tmp_path: Path) -> None:
    make_model(BIASED).save_pretrained(tmp_path / "hf")
    build_engine(to_fp8(tmp_path / "hf", tmp_path / "ckpt"), tmp_path / "engine", BuildSettings())
    made = open_engine(tmp_path / "engine")
    weights = dict(made.weights())
    name = "transformer.layers.0.mlp.fc"
    assert weights[f"{name}.weight"].dtype == E4M3
    found = tensors(written(made, tmp_path))
    want = weights[f"{name}.weight"].float() * weights[f"{name}.weights_scaling_factor"]
    np.testing.assert_array_equal(found["blk.0.ffn_gate.weight"], want.numpy())
    assert {t.dtype for t in found.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K"])
def test_blocks_that_came_from_a_file_are_those_of_the_file_again(
    kind: str, tmp_path: Path
) -> None:
    file = write_model(model_of(TIED), tmp_path / "model.gguf", mixed(kind))
    made = build_engine(file, tmp_path / "engine", BuildSettings(max_seq_len=16), backend="torch")
    write_gguf(tmp_path / "again.gguf", made, torch.float16, keep_blocks=True)
    first, again = (
        {t.name: (t.tensor_type.name, t.data) for t in gguf.GGUFReader(path).tensors}
        for path in (file, tmp_path / "again.gguf")
    )
    assert first.keys() == again.keys()
    assert {kind, "Q8_0"} < {kept for kept, _ in again.values()}
    for name, (stored, data) in first.items():
        assert again[name][0] == stored, name
        np.testing.assert_array_equal(again[name][1], data, name)


def test_blocks_that_ggml_does_not_have_are_dequantised(tmp_path: Path) -> None:
    make_model(Variant("", {"hidden_size": 64, "intermediate_size": 128})).save_pretrained(
        tmp_path / "model"
    )
    convert(tmp_path / "model", tmp_path / "ckpt", dtype="int4", group_size=64)
    made = build_engine(tmp_path / "ckpt", tmp_path / "engine", BuildSettings(max_seq_len=16))
    numbers = dict(without_blocks(made.weights(), torch.float32))
    write_gguf(tmp_path / "m.gguf", made, torch.float32, keep_blocks=True)
    found = tensors(gguf.GGUFReader(tmp_path / "m.gguf"))
    down = numbers["transformer.layers.0.mlp.proj.weight"]
    np.testing.assert_array_equal(found["blk.0.ffn_down.weight"], down)
