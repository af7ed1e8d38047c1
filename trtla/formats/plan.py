"""The plan of a TensorRT-LLM checkpoint: each tensor's rows and columns of Hugging Face's tensors.

One list of targets a rank is the only description of the format: conversion streams it, reassembly
inverts it, validation compares files with it. Shapes and names follow TensorRT-LLM's
models/{llama,qwen}/convert.py and models/modeling_utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from trtla.formats.config import (
    BLOCK_SIZES,
    DTYPE_BYTES,
    FP8,
    INT4,
    CheckpointConfig,
    Mapping,
    Quantization,
)
from trtla.formats.shapes import CORRECTION, EMBEDDING, FINAL_NORM, LM_HEAD, SINKS, hf_shapes, norms

Span = tuple[int, int]
"""Half-open range [start, stop)."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows, and for matrices columns, of one Hugging Face tensor; zeros where `source` is None."""

    source: str | None
    rows: Span
    cols: Span | None
    """Bytes where the tensor is in blocks."""

    @property
    def height(self) -> int:
        return self.rows[1] - self.rows[0]


@dataclass(frozen=True, slots=True)
class Target:
    """One tensor of a rank file: its blocks stacked along dimension 0."""

    name: str
    shape: tuple[int, ...]
    """The stored shape: for weights in blocks outputs, and bytes of a row."""
    blocks: tuple[Block, ...]
    dtype: str
    """The checkpoint's dtype, or the type of blocks; with FP8 and W4A16_AWQ also float8_e4m3fn or
    int4, and float32 for scales."""

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.element_bytes

    @property
    def element_bytes(self) -> int:
        """The bytes of an element of the stored shape; blocks are stored as bytes."""
        return DTYPE_BYTES.get(self.dtype, 1)


def block_names(config: CheckpointConfig) -> str:
    """The types of a config's blocks for a sentence, such as `Q4_1, Q8_0`."""
    return ", ".join(sorted(set(config.block_types.values())))


def single_rank(config: CheckpointConfig) -> CheckpointConfig:
    """The same model on one rank: mapping of world size 1, embedding not split."""
    return config.model_copy(update={"mapping": Mapping(), "use_parallel_embedding": False})


def rank_plan(config: CheckpointConfig, rank: int) -> tuple[Target, ...]:
    """Every tensor of a rank's file, in file order; rank = pp_rank * tp_size + tp_rank."""
    pp_rank, tp_rank = divmod(rank, config.mapping.tp_size)
    targets = _RankPlanner(config, tp_rank, pp_rank).targets()
    # Wider elements first, as safetensors writes them: readers map the file and need alignment.
    return tuple(sorted(targets, key=lambda target: -target.element_bytes))


def untied(config: CheckpointConfig) -> CheckpointConfig:
    """The same model with an lm_head of its own."""
    return config.model_copy(update={"tie_word_embeddings": False})


def stored_plan(config: CheckpointConfig, rank: int) -> tuple[Target, ...]:
    """The written part of `rank_plan`: one rank's tied lm_head is the embedding, and stored once.

    TensorRT-LLM takes the embedding for a missing lm_head (PretrainedModel.load and
    share_embedding), but not where the ranks' shapes of them differ.
    """
    plan = rank_plan(config, rank)
    if not config.tie_word_embeddings or config.mapping.world_size > 1:
        return plan
    return tuple(target for target in plan if target.name != LM_HEAD)


def source_shapes(config: CheckpointConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a source of this checkpoint reads: Hugging Face's, and their scales.

    Rows of weights in blocks are rows of blocks, in bytes; a row of W4A16_AWQ's are two outputs.
    """
    scales: list[str] = []
    if config.fp8:
        for name in fp8_groups(config):
            scales += [f"{name}.weight_scale", f"{name}.input_scale"]
    if config.fp8_kv_cache:
        scales += [kv_scale(layer) for layer in range(config.num_hidden_layers)]
    shapes = hf_shapes(config)
    for name, kind in config.block_types.items():
        inputs, size = BLOCK_SIZES[kind]
        shapes[name] = (shapes[name][0], shapes[name][1] // inputs * size)
    return {**shapes, **_awq_shapes(config), **dict.fromkeys(scales, (1,))}


def _awq_shapes(config: CheckpointConfig) -> dict[str, tuple[int, ...]]:
    """The weights of W4A16_AWQ as they are stored, and their scales."""
    group_size = config.awq_group_size
    if group_size is None:
        return {}
    shapes: dict[str, tuple[int, ...]] = {}
    plain = hf_shapes(config)
    for name, weights in fp8_groups(config).items():
        for weight in weights:
            outputs, inputs = plain[weight]
            shapes[weight] = (outputs // 2, inputs)
            shapes[awq_scales(weight)] = (outputs, inputs // group_size)
        if config.quantization.pre_quant_scale:
            shapes[awq_input_scale(name)] = (plain[weights[0]][1],)
    return shapes


def awq_scales(weight: str) -> str:
    """The name of a weight's scales, float32 [outputs, groups], in a source."""
    return f"{weight}_scale"


def awq_input_scale(linear: str) -> str:
    """The name, in a source, of the vector that first multiplies the inputs of an `fp8_groups`."""
    return f"{linear}.pre_quant_scale"


def fp8_groups(config: CheckpointConfig) -> dict[str, tuple[str, ...]]:
    """Every quantised linear and the Hugging Face weights that share its scale.

    The fused q, k and v have no name in Hugging Face; theirs is `qkv_proj`. The scales of NAME are
    `NAME.weight_scale` and `NAME.input_scale`.
    """
    groups: dict[str, tuple[str, ...]] = {}
    for layer in range(config.num_hidden_layers):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        groups[f"{attention}.qkv_proj"] = tuple(f"{attention}.{x}_proj.weight" for x in "qkv")
        for linear in (f"{attention}.o_proj", *(f"{mlp}.{x}_proj" for x in ("gate", "up", "down"))):
            groups[linear] = (f"{linear}.weight",)
    return groups


def linear_sizes(config: CheckpointConfig) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of a layer's linears on one rank, by TensorRT-LLM's names."""
    plain = config.model_copy(update={"quantization": Quantization()})
    prefix = "transformer.layers.0."
    targets = (target for target in rank_plan(plain, 0) if target.name.startswith(prefix))
    shapes = ((target.name.removeprefix(prefix), target.shape) for target in targets)
    return {n.removesuffix(".weight"): (s[0], s[1]) for n, s in shapes if len(s) == 2}


def kv_scale(layer: int) -> str:
    """The name of the scale of a layer's keys and values in a source."""
    return f"model.layers.{layer}.self_attn.kv_scale"


def fp8_linears(config: CheckpointConfig) -> tuple[str, ...]:
    """TensorRT-LLM's names of the quantised linears."""
    suffix = ".weights_scaling_factor"
    names = (target.name for target in rank_plan(single_rank(config), 0))
    return tuple(name.removesuffix(suffix) for name in names if name.endswith(suffix))


@dataclass(frozen=True)
class _RankPlanner:
    """The targets of one rank, one short method a rule of TensorRT-LLM's layout."""

    config: CheckpointConfig
    tp_rank: int
    pp_rank: int

    def targets(self) -> Iterator[Target]:
        mapping = self.config.mapping
        if self.pp_rank == 0:
            yield self._embedding()
        layers = self.config.num_hidden_layers // mapping.pp_size
        for local in range(layers):
            yield from self._layer(local, self.pp_rank * layers + local)
        if self.pp_rank == mapping.pp_size - 1:
            final = FINAL_NORM.removesuffix(".weight")
            yield self._norm("transformer.ln_f", final, self.config.hidden_size)
            yield self._target("lm_head.weight", *self._vocab_rows(LM_HEAD))

    def _layer(self, local: int, layer: int) -> Iterator[Target]:
        config = self.config
        to, source = f"transformer.layers.{local}", f"model.layers.{layer}"
        queries = self._chunk(config.num_attention_heads * config.head_size)
        hidden = (0, config.hidden_size)
        rest = (self._norm(f"{to}.{o}", f"{source}.{n}", size) for n, o, size in norms(config))
        yield next(rest)
        yield from self._qkv(f"{to}.attention.qkv", f"{source}.self_attn")
        dense, out = f"{to}.attention.dense", f"{source}.self_attn.o_proj"
        yield from self._linear(dense, out, hidden, queries, config.dense_bias)
        if config.attention_sinks:
            heads = Block(f"{source}.{SINKS}", self._chunk(config.num_attention_heads), None)
            yield self._target(f"{to}.attention.sinks", heads, dtype="float32")
        yield from rest
        if config.has_experts(layer):
            yield from self._experts(f"{to}.mlp", f"{source}.mlp")
        else:
            inner = self._chunk(config.intermediate_size)
            yield from self._mlp(f"{to}.mlp", f"{source}.mlp", inner, config.mlp_bias)
        if config.fp8_kv_cache:
            yield self._scale(f"{to}.attention.kv_cache_scaling_factor", kv_scale(layer))

    def _experts(self, to: str, source: str) -> Iterator[Target]:
        """The router, whole and in full precision, and this rank's part of every expert."""
        experts, hidden = self.config.num_experts, self.config.hidden_size
        router = Block(f"{source}.gate.weight", (0, experts), (0, hidden))
        yield self._target(f"{to}.router.weight", router, dtype="float32")
        inner, bias = self._chunk(self.config.moe_intermediate_size), self.config.moe_bias
        if bias:
            biases = Block(f"{source}.gate.bias", (0, experts), None)
            yield self._target(f"{to}.router.bias", biases, dtype="float32")
        for expert in range(experts):
            one = f"experts.{expert}"
            yield from self._mlp(f"{to}.{one}", f"{source}.{one}", inner, bias)
        if width := self.config.shared_intermediate_size:
            names = f"{to}.shared_expert", f"{source}.shared_expert"
            yield from self._mlp(*names, self._chunk(width), False)
        if self.config.score_correction:
            block = Block(f"{source}.{CORRECTION.removeprefix('mlp.')}", (0, experts), None)
            yield self._target(f"{to}.router.correction", block, dtype="float32")
        if self.config.shared_expert_gate:
            gate = Block(f"{source}.shared_expert_gate.weight", (0, hidden), None)
            yield self._target(f"{to}.router.shared_gate", gate, dtype="float32")

    def _mlp(self, to: str, source: str, inner: Span, bias: bool) -> Iterator[Target]:
        hidden = (0, self.config.hidden_size)
        # TensorRT-LLM names the activated half `fc` and the other one `gate`.
        yield from self._linear(f"{to}.fc", f"{source}.gate_proj", inner, hidden, bias)
        yield from self._linear(f"{to}.gate", f"{source}.up_proj", inner, hidden, bias)
        yield from self._linear(f"{to}.proj", f"{source}.down_proj", hidden, inner, bias)

    def _qkv(self, to: str, source: str) -> Iterator[Target]:
        """This rank's rows of q, k, v, stacked; several ranks share a K/V head when tp > kv."""
        config, tp, size = self.config, self.config.mapping.tp_size, self.config.head_size
        queries, keys = config.num_attention_heads // tp, max(config.num_key_value_heads // tp, 1)
        first_key = self.tp_rank * config.num_key_value_heads // tp
        q = (self.tp_rank * queries * size, (self.tp_rank + 1) * queries * size)
        k = (first_key * size, (first_key + keys) * size)
        rows = (("q_proj", q), ("k_proj", k), ("v_proj", k))
        cols = (0, config.hidden_size)
        weights = [Block(f"{source}.{name}.weight", span, cols) for name, span in rows]
        if config.block_types:  # theirs may differ, and so may the lengths of their rows
            for (name, _), block in zip(rows, weights, strict=True):
                yield self._target(f"{to.removesuffix('qkv')}{name[0]}.weight", block)
        else:
            yield from self._weight(to, f"{source}.qkv_proj", *weights)
        if config.attn_bias:
            biases = [Block(f"{source}.{name}.bias", span, None) for name, span in rows]
            yield self._target(f"{to}.bias", *biases)

    def _linear(self, to: str, source: str, rows: Span, cols: Span, bias: bool) -> Iterator[Target]:
        """A linear that is split by outputs (rows, of the bias too) or by inputs (columns)."""
        yield from self._weight(to, source, Block(f"{source}.weight", rows, cols))
        if bias:
            yield self._target(f"{to}.bias", Block(f"{source}.bias", rows, None))

    def _embedding(self) -> Target:
        name, config = "transformer.vocab_embedding.weight", self.config
        if not config.use_parallel_embedding:
            rows, cols = (0, config.vocab_size), (0, config.hidden_size)
            return self._target(name, Block(EMBEDDING, rows, cols))
        if config.embedding_sharding_dim == 0:
            return self._target(name, *self._vocab_rows(EMBEDDING))
        cols = self._chunk(config.hidden_size)
        return self._target(name, Block(EMBEDDING, (0, config.vocab_size), cols))

    def _vocab_rows(self, source: str) -> list[Block]:
        """ceil(V / tp) rows; those above the vocabulary are zero (pad_vocab_size)."""
        vocab, cols = self.config.vocab_size, (0, self.config.hidden_size)
        each = -(-vocab // self.config.mapping.tp_size)
        start, stop = self.tp_rank * each, (self.tp_rank + 1) * each
        real = Block(source, (min(start, vocab), min(stop, vocab)), cols)
        zeros = Block(None, (max(start, vocab), max(stop, vocab)), cols)
        return [block for block in (real, zeros) if block.height]

    def _chunk(self, size: int) -> Span:
        each = size // self.config.mapping.tp_size
        return (self.tp_rank * each, (self.tp_rank + 1) * each)

    def _norm(self, to: str, source: str, size: int) -> Target:
        block = Block(f"{source}.weight", (0, size), None)
        # What was added to them is lost in half a type's few bits.
        dtype = "float32" if self.config.offset_norms else None
        return self._target(f"{to}.weight", block, dtype=dtype)

    def _weight(self, to: str, source: str, *blocks: Block) -> Iterator[Target]:
        """The weight of a linear, and with FP8 its scales, which are the same on every rank."""
        if self.config.awq_group_size:
            yield from self._awq(to, source, self.config.awq_group_size, blocks)
            return
        if not self.config.fp8:
            yield self._target(f"{to}.weight", *blocks)
            return
        yield self._target(f"{to}.weight", *blocks, dtype=FP8)
        yield self._scale(f"{to}.weights_scaling_factor", f"{source}.weight_scale")
        yield self._scale(f"{to}.activation_scaling_factor", f"{source}.input_scale")

    def _awq(
        self, to: str, source: str, group_size: int, blocks: tuple[Block, ...]
    ) -> Iterator[Target]:
        """Pairs of outputs in a byte, and a scale for every output and group of inputs."""
        first, last = blocks[0].cols or (0, 0)
        pairs = (replace(part, rows=(part.rows[0] // 2, part.rows[1] // 2)) for part in blocks)
        yield self._target(f"{to}.weight", *pairs, dtype=INT4)
        groups = (first // group_size, last // group_size)
        scales = (Block(awq_scales(part.source or ""), part.rows, groups) for part in blocks)
        yield self._target(f"{to}.weights_scaling_factor", *scales, dtype="float32")
        if self.config.quantization.pre_quant_scale:
            block = Block(awq_input_scale(source), (first, last), None)
            yield self._target(f"{to}.prequant_scaling_factor", block)

    def _scale(self, name: str, source: str) -> Target:
        return self._target(name, Block(source, (0, 1), None), dtype="float32")

    def _target(self, name: str, *blocks: Block, dtype: str | None = None) -> Target:
        kind = self.config.block_types.get(blocks[0].source or "")
        if kind is not None:
            return _quantized(name, kind, blocks)
        height, cols = sum(block.height for block in blocks), blocks[0].cols
        shape = (height,) if cols is None else (height, cols[1] - cols[0])
        return Target(name, shape, blocks, dtype or self.config.dtype)


def _quantized(name: str, kind: str, blocks: tuple[Block, ...]) -> Target:
    """A weight in blocks, of which a rank has whole ones; bytes of zeros are numbers of zero."""
    inputs, size = BLOCK_SIZES[kind]
    first, last = (end // inputs * size for end in blocks[0].cols or (0, 0))
    rows = tuple(replace(block, cols=(first, last)) for block in blocks)
    return Target(name, (sum(block.height for block in rows), last - first), rows, kind)
