"""An enlarged checkpoint predicts what its source predicts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import scale_llama  # noqa: E402

SHIPPED = ROOT / "trtla" / "assets" / "tiny-llama"

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}

GROWN = {
    "nothing": {},
    "width": {"hidden_size": 52},
    "power-of-four": {"hidden_size": 128},
    "layers": {"num_hidden_layers": 5},
    "query-heads": {"num_attention_heads": 8},
    "heads": {"hidden_size": 48, "num_attention_heads": 12, "num_key_value_heads": 3},
    "smaller-groups": {"num_attention_heads": 8, "num_key_value_heads": 8},
    "head-dim": {"head_dim": 24},
    "feed-forward": {"intermediate_size": 100},
    "vocabulary": {"vocab_size": 200, "hidden_size": 40},
    "all": {
        "vocab_size": 128,
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "intermediate_size": 80,
    },
}


def _save_small(folder: Path, **changes: Any) -> Path:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**SMALL, **changes}))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    model.save_pretrained(folder)
    return folder


def _run(source: Path, target: Path, sizes: dict[str, int], *extra: str) -> int:
    options = [f"--{name.replace('_', '-')}={size}" for name, size in sizes.items()]
    folders = ["--model-dir", str(source), "--output-dir", str(target)]
    return scale_llama.main([*folders, *options, *extra])


def _logits(folder: Path, vocab_size: int) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    tokens = torch.randint(0, vocab_size, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits: Tensor = model(tokens).logits
    return logits


def _assert_same(source: Path, target: Path) -> None:
    vocab_size = json.loads((source / "config.json").read_text())["vocab_size"]
    before, after = _logits(source, vocab_size), _logits(target, vocab_size)
    if after.shape == before.shape:
        torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)
        return
    # Added tokens never win, and take no probability from the others.
    assert (after[..., vocab_size:].amax(-1) < before.amin(-1) - 20).all()
    old = after.log_softmax(-1)[..., :vocab_size]
    torch.testing.assert_close(old, before.log_softmax(-1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("sizes", GROWN.values(), ids=GROWN.keys())
def test_same_predictions(tmp_path: Path, sizes: dict[str, int], tied: bool) -> None:
    source = _save_small(tmp_path / "source", tie_word_embeddings=tied)
    assert _run(source, tmp_path / "target", sizes) == 0
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    assert {name: config[name] for name in sizes} == sizes
    _assert_same(source, tmp_path / "target")


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_multi_query_and_full_attention(tmp_path: Path, kv_heads: int) -> None:
    source = _save_small(tmp_path / "source", num_key_value_heads=kv_heads)
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2 * kv_heads}
    assert _run(source, tmp_path / "target", sizes) == 0
    _assert_same(source, tmp_path / "target")


def test_shards_hold_the_same_weights(tmp_path: Path) -> None:
    source = _save_small(tmp_path / "source")
    assert _run(source, tmp_path / "one", {"hidden_size": 64}) == 0
    assert _run(source, tmp_path / "many", {"hidden_size": 64}, "--max-shard-bytes=20000") == 0
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 2
    assert torch.equal(_logits(tmp_path / "one", 61), _logits(tmp_path / "many", 61))
    # A sharded checkpoint is also a source.
    assert _run(tmp_path / "many", tmp_path / "more", {"num_hidden_layers": 3}) == 0
    _assert_same(source, tmp_path / "more")


def test_dtype_is_written(tmp_path: Path) -> None:
    source = _save_small(tmp_path / "source")
    assert _run(source, tmp_path / "target", {"hidden_size": 64}, "--dtype=bfloat16") == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "target", torch_dtype="auto")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.skipif(not SHIPPED.is_dir(), reason="the shipped model is not there")
def test_shipped_model(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "intermediate_size": 1024,
        "vocab_size": 4096,
    }
    assert _run(SHIPPED, tmp_path / "target", sizes, "--dtype=float32") == 0
    assert (tmp_path / "target" / "tokenizer.json").is_file()
    _assert_same(SHIPPED, tmp_path / "target")


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"hidden_size": 16}, "hidden_size can only grow"),
        ({"num_attention_heads": 5}, "multiple of num_key_value_heads"),
        ({"hidden_size": 33}, "multiple of num_attention_heads"),
        ({"head_dim": 12}, "head_dim must be a multiple of the source's 8"),
        ({"vocab_size": 62}, "together with hidden_size"),
    ],
)
def test_errors_are_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sizes: dict[str, int], words: str
) -> None:
    source = _save_small(tmp_path / "source")
    assert _run(source, tmp_path / "target", sizes) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_too_few_kv_heads_for_smaller_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _save_small(tmp_path / "source", hidden_size=48, num_attention_heads=6)
    assert _run(source, tmp_path / "target", {"num_key_value_heads": 3}) == 2
    assert "num_key_value_heads must be at least 4" in capsys.readouterr().err


def test_bad_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(tmp_path / "absent", tmp_path / "target", {}) == 2
    assert "config.json cannot be read" in capsys.readouterr().err
    source = _save_small(tmp_path / "source")
    assert _run(source, source, {}) == 2
    assert "not an empty folder" in capsys.readouterr().err
    (source / "model.safetensors").write_bytes(b"nonsense")
    assert _run(source, tmp_path / "target", {}) == 2
    assert "cannot be read as safetensors" in capsys.readouterr().err
    (source / "model.safetensors").unlink()
    assert _run(source, tmp_path / "target", {}) == 2
    assert "neither model.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", "{}", '{"model_type": "llama"}'])
def test_bad_config(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert _run(tmp_path, tmp_path / "target", {}) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "target").exists()
