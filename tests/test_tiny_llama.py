"""The Llama that ships with the project."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "trtla" / "assets" / "tiny-llama"
LIBRARY = Path(os.__file__).resolve().parent

# Held out of training; the loss is taken over the first tokens of each, which are the hardest
# ones. Measured: 2.90, 2.35 and 2.17 nats; other Python versions change the files.
HELD_OUT = ("statistics.py", "pprint.py", "modulefinder.py")
HELD_OUT_TOKENS = 2047
MAX_NATS = 3.3


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(FOLDER, torch_dtype=torch.float32).eval()


def test_size_and_shape() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size <= 8_000_000
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    assert config["head_dim"] == 64
    assert config["num_attention_heads"] > config["num_key_value_heads"] > 1
    assert config["tie_word_embeddings"] is True


def test_end_tokens(tokenizer: Any, model: Any) -> None:
    ends = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|end|>"])
    assert model.generation_config.eos_token_id == ends
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.pad_token == "<|pad|>"


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return x  \n\n\n\tif 1:\r\n        pass\n",
        'name = "naïve café 東京 \N{PARTY POPPER} \\u00e9"\n',
        " leading and trailing ",
        "don 't , clean . up !",
        Path(__file__).read_text(encoding="utf-8"),
    ],
)
def test_tokenizer_round_trip(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_encoding_adds_nothing(tokenizer: Any) -> None:
    assert tokenizer.encode("") == []
    assert len(tokenizer.encode("x")) == 1
    assert len(tokenizer.encode("\n        return")) == 2


def test_chat_template(tokenizer: Any) -> None:
    messages = [
        {"role": "user", "content": "Return the sum."},
        {"role": "assistant", "content": "def f(a, b):\n    return a + b"},
        {"role": "user", "content": "Close the file."},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|user|>\nReturn the sum.<|end|>\n"
        "<|assistant|>\ndef f(a, b):\n    return a + b<|end|>\n"
        "<|user|>\nClose the file.<|end|>\n"
        "<|assistant|>\n"
    )


@pytest.mark.parametrize("relative", HELD_OUT)
def test_held_out_loss(tokenizer: Any, model: Any, relative: str) -> None:
    if not (LIBRARY / relative).is_file():
        pytest.skip("this Python has no such file")
    assert f"`{relative}`" in (FOLDER / "README.md").read_text(encoding="utf-8")
    text = (LIBRARY / relative).read_text(encoding="utf-8")
    tokens = torch.tensor([tokenizer.encode(text[:16000])[: HELD_OUT_TOKENS + 1]])
    with torch.no_grad():
        loss = float(model(tokens, labels=tokens).loss)
    assert math.isfinite(loss)
    assert loss < MAX_NATS


def test_continuation_looks_like_python(tokenizer: Any, model: Any) -> None:
    tokens = torch.tensor([tokenizer.encode("import os\n\n\nclass Reader:\n    def __init__(")])
    with torch.no_grad():
        best = int(model(tokens).logits[0, -1].argmax())
    assert tokenizer.decode([best]).startswith("self")
