"""Which Hugging Face rows and columns make up every tensor of a TensorRT-LLM checkpoint.

One list of targets a rank is the only description of the format: conversion streams it, reassembly
inverts it, validation compares files with it. Shapes and names follow TensorRT-LLM's
models/llama/convert.py and models/modeling_utils.py. Nothing here reads a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from trtla.config import CheckpointConfig, Mapping
from trtla.errors import UsageError

Span = tuple[int, int]
"""Half-open range [start, stop)."""

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Block:
    """Rows, and for matrices columns, of one Hugging Face tensor; zeros where `source` is None."""

    source: str | None
    rows: Span
    cols: Span | None

    @property
    def height(self) -> int:
        """Rows of the block."""
        return self.rows[1] - self.rows[0]


@dataclass(frozen=True, slots=True)
class Target:
    """One tensor of a rank file: its blocks stacked along dimension 0."""

    name: str
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Linear:
    """One linear layer's Hugging Face shape (out, in) and the name of its tensors' prefix."""

    name: str
    out_size: int
    in_size: int


def check_mapping(config: CheckpointConfig) -> None:
    """Refuse a tp_size or pp_size that TensorRT-LLM could not load (equal chunks, no lost layer).

    Raises:
        UsageError: heads, intermediate size or layers do not divide.
    """
    tp, pp = config.mapping.tp_size, config.mapping.pp_size
    kv = config.num_key_value_heads
    sizes = {
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
    }
    if config.use_parallel_embedding and config.embedding_sharding_dim == 1:
        sizes["hidden_size"] = config.hidden_size
    for key, value in sizes.items():
        if value % tp:
            raise UsageError(
                f"tp_size {tp} does not divide {key} {value}",
                f"use a --tp-size that divides {value}",
            )
    if kv % tp and tp % kv:
        raise UsageError(
            f"tp_size {tp} neither divides num_key_value_heads {kv} nor is a multiple of it",
            f"use a --tp-size that divides {kv} or that {kv} divides",
        )
    if config.num_hidden_layers % pp:
        raise UsageError(
            f"pp_size {pp} does not divide num_hidden_layers {config.num_hidden_layers}",
            f"use a --pp-size that divides {config.num_hidden_layers}",
        )


def single_rank(config: CheckpointConfig) -> CheckpointConfig:
    """The same model on one rank: mapping of world size 1, embedding not split."""
    return config.model_copy(update={"mapping": Mapping(), "use_parallel_embedding": False})


def rank_plan(config: CheckpointConfig, rank: int) -> tuple[Target, ...]:
    """Every tensor of a rank's file, in file order; rank = pp_rank * tp_size + tp_rank."""
    pp_rank, tp_rank = divmod(rank, config.mapping.tp_size)
    return tuple(_RankPlanner(config, tp_rank, pp_rank).targets())


def hf_shapes(config: CheckpointConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the Hugging Face checkpoint with its shape, in file order."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (vocab, hidden)}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        for linear in _linears(config, prefix):
            shapes[f"{linear.name}.weight"] = (linear.out_size, linear.in_size)
            if config.attn_bias if ".self_attn." in linear.name else config.mlp_bias:
                shapes[f"{linear.name}.bias"] = (linear.out_size,)
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
    return {**shapes, FINAL_NORM: (hidden,), LM_HEAD: (vocab, hidden)}


def _linears(config: CheckpointConfig, prefix: str) -> Iterator[Linear]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_size
    keys = config.num_key_value_heads * config.head_size
    yield Linear(f"{prefix}.self_attn.q_proj", queries, hidden)
    yield Linear(f"{prefix}.self_attn.k_proj", keys, hidden)
    yield Linear(f"{prefix}.self_attn.v_proj", keys, hidden)
    yield Linear(f"{prefix}.self_attn.o_proj", hidden, queries)
    yield Linear(f"{prefix}.mlp.gate_proj", inner, hidden)
    yield Linear(f"{prefix}.mlp.up_proj", inner, hidden)
    yield Linear(f"{prefix}.mlp.down_proj", hidden, inner)


@dataclass(frozen=True)
class _RankPlanner:
    """The targets of one rank, one short method a rule of TensorRT-LLM's layout."""

    config: CheckpointConfig
    tp_rank: int
    pp_rank: int

    def targets(self) -> Iterator[Target]:
        mapping, hidden = self.config.mapping, (0, self.config.hidden_size)
        if self.pp_rank == 0:
            yield self._embedding()
        layers = self.config.num_hidden_layers // mapping.pp_size
        for local in range(layers):
            yield from self._layer(local, self.pp_rank * layers + local)
        if self.pp_rank == mapping.pp_size - 1:
            yield _target("transformer.ln_f.weight", Block(FINAL_NORM, hidden, None))
            yield _target("lm_head.weight", *self._vocab_rows(LM_HEAD))

    def _layer(self, local: int, layer: int) -> Iterator[Target]:
        config, hidden = self.config, (0, self.config.hidden_size)
        to, source = f"transformer.layers.{local}", f"model.layers.{layer}"
        queries = config.num_attention_heads * config.head_size
        inner, mlp = config.intermediate_size, config.mlp_bias
        yield _target(f"{to}.input_layernorm.weight", _vector(source, "input_layernorm", hidden))
        yield from self._qkv(f"{to}.attention.qkv", f"{source}.self_attn")
        yield from self._row_split(
            f"{to}.attention.dense", f"{source}.self_attn.o_proj", queries, config.attn_bias
        )
        yield _target(
            f"{to}.post_layernorm.weight", _vector(source, "post_attention_layernorm", hidden)
        )
        # TensorRT-LLM names the activated half `fc` and the other one `gate`.
        yield from self._column_split(f"{to}.mlp.fc", f"{source}.mlp.gate_proj", inner, mlp)
        yield from self._column_split(f"{to}.mlp.gate", f"{source}.mlp.up_proj", inner, mlp)
        yield from self._row_split(f"{to}.mlp.proj", f"{source}.mlp.down_proj", inner, mlp)

    def _qkv(self, to: str, source: str) -> Iterator[Target]:
        """This rank's rows of q, k, v, stacked; several ranks share a K/V head when tp > kv."""
        config, tp, size = self.config, self.config.mapping.tp_size, self.config.head_size
        queries, keys = config.num_attention_heads // tp, max(config.num_key_value_heads // tp, 1)
        first_key = self.tp_rank * config.num_key_value_heads // tp
        q = (self.tp_rank * queries * size, (self.tp_rank + 1) * queries * size)
        k = (first_key * size, (first_key + keys) * size)
        rows = (("q_proj", q), ("k_proj", k), ("v_proj", k))
        cols = (0, config.hidden_size)
        yield _target(
            f"{to}.weight", *(Block(f"{source}.{name}.weight", span, cols) for name, span in rows)
        )
        if config.attn_bias:
            yield _target(
                f"{to}.bias", *(Block(f"{source}.{name}.bias", span, None) for name, span in rows)
            )

    def _column_split(self, to: str, source: str, size: int, bias: bool) -> Iterator[Target]:
        """A linear whose output is split: rows of the weight and of the bias."""
        rows, cols = self._chunk(size), (0, self.config.hidden_size)
        yield _target(f"{to}.weight", Block(f"{source}.weight", rows, cols))
        if bias:
            yield _target(f"{to}.bias", Block(f"{source}.bias", rows, None))

    def _row_split(self, to: str, source: str, size: int, bias: bool) -> Iterator[Target]:
        """A linear whose input is split: columns of the weight; the bias is whole on every rank."""
        rows, cols = (0, self.config.hidden_size), self._chunk(size)
        yield _target(f"{to}.weight", Block(f"{source}.weight", rows, cols))
        if bias:
            yield _target(f"{to}.bias", Block(f"{source}.bias", rows, None))

    def _embedding(self) -> Target:
        name, config = "transformer.vocab_embedding.weight", self.config
        if not config.use_parallel_embedding:
            rows, cols = (0, config.vocab_size), (0, config.hidden_size)
            return _target(name, Block(EMBEDDING, rows, cols))
        if config.embedding_sharding_dim == 0:
            return _target(name, *self._vocab_rows(EMBEDDING))
        cols = self._chunk(config.hidden_size)
        return _target(name, Block(EMBEDDING, (0, config.vocab_size), cols))

    def _vocab_rows(self, source: str) -> list[Block]:
        """ceil(V / tp) rows; what lies above the vocabulary is zero (pad_vocab_size)."""
        vocab, cols = self.config.vocab_size, (0, self.config.hidden_size)
        each = -(-vocab // self.config.mapping.tp_size)
        start, stop = self.tp_rank * each, (self.tp_rank + 1) * each
        real = Block(source, (min(start, vocab), min(stop, vocab)), cols)
        zeros = Block(None, (max(start, vocab), max(stop, vocab)), cols)
        return [block for block in (real, zeros) if block.height]

    def _chunk(self, size: int) -> Span:
        each = size // self.config.mapping.tp_size
        return (self.tp_rank * each, (self.tp_rank + 1) * each)


def _vector(source: str, name: str, rows: Span) -> Block:
    return Block(f"{source}.{name}.weight", rows, None)


def _target(name: str, *blocks: Block) -> Target:
    height, cols = sum(block.height for block in blocks), blocks[0].cols
    return Target(name, (height,) if cols is None else (height, cols[1] - cols[0]), blocks)
