"""Small models of all kinds for the compiled forward, and caches that saw texts."""

from __future__ import annotations

import shutil

import pytest
import torch
from hypothesis import strategies as st

from trtla.formats.blocks import BLOCK_TYPES, BlockTensor
from trtla.formats.config import CheckpointConfig
from trtla.formats.plan import rank_plan
from trtla.formats.torch_tensors import as_array
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.models.cpu.library import library
from trtla.runtime.models.cpu.llama import NativeLlama
from trtla.runtime.models.cpu.packing import pack_model
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed, Sequence
from trtla.runtime.threads import num_threads, set_threads
from trtla.settings.lookahead import AUTOREGRESSIVE

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def config_of(**keys):
    sizes = {
        "architecture": "LlamaForCausalLM",
        "dtype": "float32",
        "vocab_size": 75,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_size": 32,
        "intermediate_size": 112,
        "max_position_embeddings": 512,
    }
    return CheckpointConfig(**{**sizes, **keys})


def weights_of(config, dtype=torch.float32):
    noise = torch.Generator().manual_seed(7)
    for target in rank_plan(config, 0):
        spread = torch.randn(target.shape, generator=noise) * 0.2
        yield target.name, (spread + target.name.endswith("norm.weight")).to(dtype)


def arrays(weights):
    """Weights in blocks stay as they are."""
    for name, weight in weights:
        yield name, as_array(weight) if isinstance(weight, torch.Tensor) else weight


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def native_of(config, weights, dtype=torch.float32, **more):
    """The compiled model of weights that are tensors."""
    name = name_of(dtype)
    panels = pack_model(config, arrays(weights), name)
    return NativeLlama(config, panels, name, **more)


def pair(config, dtype=torch.float32, stored=torch.float32):
    """The compiled model and PyTorch's, of the same weights."""
    return (
        native_of(config, weights_of(config, stored), dtype),
        LlamaModel(config, arrays(weights_of(config, stored)), dtype, CPU),
    )


def sequences(cache, prompts, room=64):
    return [
        Sequence(Request(i, prompt), AUTOREGRESSIVE, NoDrafter(), [3], 0, blocks)
        for i, prompt in enumerate(prompts)
        if (blocks := cache.pool.allocate(len(prompt) + room))
    ]


def forward(model, cache, feeds):
    return torch.as_tensor(model.forward(feeds, cache).logits)


def filled(model, prompts, chunks=1):
    """A cache that has seen the prompts, and the logits behind each."""
    cache = model.new_cache(32)
    running, logits = sequences(cache, prompts), []
    for sequence in running:
        while sequence.num_cached < len(sequence.prompt):
            left = len(sequence.prompt) - sequence.num_cached
            length = min(left, -(-len(sequence.prompt) // chunks))
            out = forward(model, cache, [Feed.prompt(sequence, length, length == left)]).clone()
            sequence.num_cached += length
        logits.append(out[0])
    return cache, running, torch.stack(logits)


def text(seed, length, vocab=75):
    noise = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(vocab, (length,), generator=noise).tolist())


TREE = Draft(text(5, 15), (0, 0, 1, 2, 2, 4, 0, 7, 8, 9, 10, 3, 12, 13, 1))
KINDS = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "mqa-biases": {"num_key_value_heads": 1, "attn_bias": True, "mlp_bias": True},
    "qwen2": {"architecture": "Qwen2ForCausalLM", "rotary_base": 1e6},
    "head-size-64": {"head_size": 64},
    "head-size-128": {"head_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1},
    "head-size-16": {"head_size": 16},
    "odd-sizes": {"hidden_size": 80, "intermediate_size": 48, "vocab_size": 33},
    "linear": {"rotary_scaling": {"type": "linear", "factor": 2.0}},
    "yarn": {"rotary_scaling": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": 20},
    "dynamic": {
        "rotary_scaling": {"type": "dynamic", "factor": 4.0},
        "max_position_embeddings": 20,
    },
    "experts": {
        "num_experts": 37,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
    },
    "all-experts": {
        "num_experts": 4,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 16,
        "dense_layers": (0,),
    },
}


def needs(dtype):
    if dtype == torch.bfloat16 and not library().has_bfloat16_products:
        pytest.skip("the processor does not multiply bfloat16")


def draft_of(nodes):
    return Draft(
        tuple(token for token, _ in nodes),
        tuple(choice % (index + 1) for index, (_, choice) in enumerate(nodes)),
    )


def check_threads(model):
    """Prompts and drafts give the same bits with every number of threads."""
    before, found = num_threads(), []
    try:
        for threads in (1, 2, 5):
            set_threads(threads)
            cache, running, first = filled(model, [text(1, 90), text(2, 5)])
            steps = forward(model, cache, [Feed.step(s, TREE) for s in running])
            found.append(torch.cat([first, steps]))
    finally:
        set_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def check_alone_and_among_others(model, shapes, seed):
    """The last node of every tree has the same bits as when its text is read alone, in chunks."""
    prompts = [text(seed + i, 5 + 17 * i) for i in range(len(shapes))]
    drafts = [draft_of(nodes) for nodes in shapes]
    cache, running, _ = filled(model, prompts)
    feeds = [Feed.step(s, d) for s, d in zip(running, drafts, strict=True)]
    together = forward(model, cache, feeds).split([len(feed.rows) for feed in feeds])
    for prompt, draft, rows in zip(prompts, drafts, together, strict=True):
        node = draft.size - 1
        alone = filled(model, [(*prompt, 3, *path(draft, node))], chunks=1 + seed % 3)[2]
        assert torch.equal(rows[node], alone[0])


NAMES = list(BLOCK_TYPES)
SPREAD = {"Q6_K": 64, "Q4_K": 32, "Q5_K": 32, "IQ4_NL": 8, "IQ4_XS": 128, "Q3_K": 16, "Q2_K": 8}
"""The usual size of a block's numbers over `2**bits`, before its scale."""


def blocks(name, outputs, inputs, noise):
    """Random codes and factors with scales that give weights of about the usual size."""
    kind = BLOCK_TYPES[name]
    rows = torch.randint(256, (outputs, kind.row_bytes(inputs)), dtype=torch.uint8, generator=noise)
    parts = rows.view(outputs, -1, kind.nbytes)
    factor = SPREAD.get(name, 1)
    for place, at in enumerate(kind.halves):
        scale = (torch.rand(parts.shape[:2], generator=noise) + 0.5) * 0.5
        scale /= 2**kind.bits * factor * inputs**0.5
        if place:  # the minimum: it is subtracted of types with factors
            scale *= 2 ** (kind.bits - 1) * (1 if factor > 1 else -1)
        parts[..., at : at + 2] = scale.half()[..., None].view(torch.uint8)
    if not kind.halves:  # a power of two
        parts[..., 0] = 121 - inputs.bit_length() // 2 + parts[..., 0] % 2
    return BlockTensor(kind, rows.numpy())


def weights_in(config, name_of):
    """A model's weights in the types that `name_of` gives for their names; None: float16."""
    noise = torch.Generator().manual_seed(3)
    heads, size = config.num_attention_heads, config.head_size
    sizes = {"q": heads * size, "k": config.num_key_value_heads * size}
    for target in rank_plan(config, 0):
        if len(target.shape) == 1:
            yield target.name, torch.randn(target.shape, generator=noise) * 0.1 + 1
            continue
        fused = target.name.endswith("qkv.weight")
        for part in "qkv" if fused else [""]:
            name = target.name.replace("qkv", part) if fused else target.name
            outputs = sizes.get(part, sizes["k"]) if fused else target.shape[0]
            weight = blocks(name_of(name) or "Q8_0", outputs, target.shape[1], noise)
            yield name, weight if name_of(name) else torch.from_numpy(weight.dequantize()).half()


def sized(**keys):
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}
    return config_of(**{**sizes, **keys})


trees = st.lists(st.tuples(st.integers(0, 74), st.integers(0, 10**6)), max_size=30)


def path(draft, node):
    return [] if not node else [*path(draft, draft.parents[node - 1]), draft.tokens[node - 1]]
