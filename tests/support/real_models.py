"""Tiny real models in folders, with transformers' own beside them."""

from __future__ import annotations

import dataclasses
import functools
import random
import tempfile
from pathlib import Path

import pytest
import torch

from tests.support.models import VARIANTS, Variant, make_model, save_model
from trtla import LLM, LookaheadConfig
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.build.quantize import Calibration
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.config import CheckpointConfig, Quantization
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.plan import rank_plan
from trtla.formats.torch_tensors import quantize
from trtla.runtime.models.layers import Fp8Linear
from trtla.runtime.models.llama import LlamaModel

REPETITIVE = 2.0  # sharpens the random model's choices so that texts loop and drafts are accepted


@functools.cache
def folder_and_model(name):
    """A variant with room for longer texts; dynamic and yarn go beyond 48 trained tokens."""
    variant = next(v for v in VARIANTS if v.name == name)
    variant = dataclasses.replace(variant, keys={**variant.keys, "max_position_embeddings": 48})
    if not any(kind in name for kind in ("dynamic", "linear", "yarn")):
        variant.keys["max_position_embeddings"] = 160
    model = make_model(variant)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(REPETITIVE)
    folder = Path(tempfile.mkdtemp()) / "model"
    return save_model(model, variant, folder), model


def open_llm(name, triple, **options):
    llm = LLM(folder_and_model(name)[0], lookahead=LookaheadConfig(*triple), **options)
    llm.end_ids = frozenset()
    return llm


@functools.cache
def generated(name, prompt, count, biases=(), **options):
    """Greedy text of transformers' generate, ended by nothing but its length."""
    if biases:
        options["sequence_bias"] = {(token,): bias for token, bias in biases}
    return greedy_text(folder_and_model(name)[1], prompt, count, **options)


def greedy_text(model, prompt, count, **options):
    model.generation_config.eos_token_id = None
    ids, mask = torch.tensor([prompt]), torch.ones(1, len(prompt), dtype=torch.long)
    options |= {"do_sample": False, "max_new_tokens": count, "pad_token_id": 0}
    with torch.no_grad():
        out = model.generate(ids, attention_mask=mask, **options)
    return tuple(out[0, len(prompt) :].tolist())


def prompts_for(seed, number, longest=40):
    rng = random.Random(seed)
    return [
        tuple(rng.choices(range(101), k=rng.choice((1, 2, rng.randint(3, longest)))))
        for _ in range(number)
    ]


CONFIG = CheckpointConfig(
    architecture="LlamaForCausalLM",
    dtype="float32",
    vocab_size=19,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_size=8,
    intermediate_size=48,
    max_position_embeddings=128,
)


def tiny_model():
    noise = torch.Generator().manual_seed(3)
    weights = (
        (
            target.name,
            torch.randn(target.shape, generator=noise).double() * 0.4
            + target.name.endswith("norm.weight"),
        )
        for target in rank_plan(CONFIG, 0)
    )
    arrays = ((name, tensor.numpy()) for name, tensor in weights)
    return LlamaModel(CONFIG, arrays, torch.float64, torch.device("cpu"))


VARIANT = Variant(
    "biased-gqa",
    {"attention_bias": True, "mlp_bias": True, "max_position_embeddings": 160},
)
CPU = torch.device("cpu")
PROMPTS = tuple(tuple((7 * i + i * i * k) % 101 for i in range(5 + 9 * k)) for k in range(4))


@functools.cache
def checkpoint():
    """The float32 model, and the folder of its FP8 checkpoint with scales for the cache too."""
    folder = Path(tempfile.mkdtemp())
    model = make_model(VARIANT)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(2.0)  # sharper choices: texts loop, drafts succeed
    save_model(model, VARIANT, folder / "hf")
    data = Calibration([list(prompt) for prompt in PROMPTS])
    convert(folder / "hf", folder / "ckpt", dtype="float32", calibration=data, fp8_kv_cache=True)
    return model, folder / "ckpt"


def load_model(products, kv_cache=False, dtype=torch.float32, device=CPU):
    found = Checkpoint.open(checkpoint()[1])
    quantization = Quantization(quant_algo="FP8", kv_cache_quant_algo="FP8" if kv_cache else None)
    config = found.config.model_copy(update={"quantization": quantization})
    return LlamaModel(config, found.full_tensors(), dtype, device, products)


def product_works():
    try:
        _linear(16, 16)(torch.ones(1, 16))
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _linear(inner, outer, bias=None, dtype=torch.float32, device="cpu", input_scale=0.02):
    generator = torch.Generator().manual_seed(inner * outer)
    weight = quantize(torch.randn(outer, inner, generator=generator), torch.tensor(0.01))
    scale = torch.tensor([0.01], device=device)
    input_scale = torch.tensor([input_scale], device=device)
    return Fp8Linear(weight.to(device), scale, input_scale, bias, dtype)


needs_products = pytest.mark.skipif(not product_works(), reason="this PyTorch has none on the CPU")


@functools.cache
def engine(kv_cache):
    """An engine of (7,6,7) from the checkpoint; without an FP8 cache its scales are taken out."""
    folder = checkpoint()[1]
    target = folder.parent / f"engine-{kv_cache}"
    if not kv_cache:
        data = Calibration([list(prompt) for prompt in PROMPTS])
        convert(folder.parent / "hf", folder.parent / "plain", dtype="float32", calibration=data)
        folder = folder.parent / "plain"
    build_engine(folder, target, BuildSettings(LookaheadConfig(7, 6, 7), max_batch_size=4))
    return target


def open_fp8(kv_cache, triple=(7, 6, 7), **options):
    llm = LLM(engine(kv_cache), lookahead=LookaheadConfig(*triple), **options)
    llm.end_ids = frozenset()
    return llm
