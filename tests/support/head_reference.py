"""EAGLE-3 heads of random weights, and their forward in float64, pair by pair, by the formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from tests.support.compiled import config_of
from trtla.formats.heads.head import EagleConfig, Head

SIZES = {
    "architecture": "LlamaForCausalLM",
    "num_hidden_layers": 1,
    "vocab_size": 40,
    "hidden_size": 64,
    "head_size": 32,
    "intermediate_size": 112,
}


def eagle_config(boundaries=(1, 2, 3), target_hidden_size=64, flags=(), **sizes):
    """A head of a model of 75 tokens."""
    return EagleConfig(
        config_of(**{**SIZES, **sizes}),
        75,
        target_hidden_size,
        boundaries,
        **dict.fromkeys(flags, True),
    )


def shapes_of(config, own=("lm_head",)):
    layer, width = config.layer, config.target_hidden_size
    size, joined = layer.hidden_size, width * len(config.boundaries)
    heads, kv_heads = (
        count * layer.head_size for count in (layer.num_attention_heads, layer.num_key_value_heads)
    )
    shapes = {
        "fc": (size, joined),
        "q": (heads, 2 * size),
        "k": (kv_heads, 2 * size),
        "v": (kv_heads, 2 * size),
        "o": (size, heads),
        "gate": (layer.intermediate_size, size),
        "up": (layer.intermediate_size, size),
        "down": (size, layer.intermediate_size),
        **dict.fromkeys(("embedding_norm", "hidden_norm", "post_norm", "norm"), (size,)),
    }
    if config.fc_norm:
        shapes |= {f"fc_norm.{tap}": (width,) for tap in range(len(config.boundaries))}
    if config.input_norm:
        shapes["input_norm"] = (joined,)
    ends = {"lm_head": (layer.vocab_size, size), "embedding": (config.vocab_size, size)}
    return shapes | {name: ends[name] for name in own}


def random_head(config, own=("lm_head",), seed=1):
    """A head with numbers of bfloat16, which every type of weights but those in blocks holds."""
    noise = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes_of(config, own).items():
        numbers = noise.standard_normal(shape) * (0.3 if len(shape) == 1 else 0.12)
        numbers = (numbers + (len(shape) == 1)).astype(np.float32)
        tensors[name] = (numbers.view(np.uint32) & 0xFFFF0000).view(np.float32)
    ids = None
    if config.layer.vocab_size < config.vocab_size:
        chosen = noise.choice(config.vocab_size, config.layer.vocab_size, replace=False)
        ids = np.sort(chosen).astype(np.int64)
    tensors = {name: lambda one=one: one.copy() for name, one in tensors.items()}
    return Head("a head", config, tensors, ids)


MUTANTS = ("halves", "residual", "feedback", "offsets")
"""Ways to get the formulas wrong, of which each changes something."""


@dataclass
class Text:
    """The pairs of a text that the reference has seen: entry -> keys and values of each head."""

    first: int
    pairs: list = field(default_factory=list)


class Reference:
    """An EAGLE-3 head in float64.

    Args:
        tensors: its weights by name, with the embedding and lm_head.
        target_ids: of the draft vocabulary, absolute.
        mutant: one of `MUTANTS`; empty: the formulas are right.
    """

    def __init__(self, config, tensors, target_ids, mutant=""):
        self.config, self.layer, self.mutant = config, config.layer, mutant
        self.tensors = {name: np.asarray(one, np.float64) for name, one in tensors.items()}
        self.ids = range(config.layer.vocab_size) if target_ids is None else list(target_ids)
        if mutant == "offsets":
            self.ids = [found - own for own, found in enumerate(self.ids)]

    def norm(self, numbers, name):
        mean = sum(x * x for x in numbers) / len(numbers)
        return numbers / math.sqrt(mean + self.layer.norm_epsilon) * self.tensors[name]

    def fuse(self, taps):
        """The state of a pair, of the target's states [taps, its hidden size]."""
        parts = [np.asarray(tap, np.float64) for tap in taps]
        if self.config.fc_norm:
            parts = [self.norm(part, f"fc_norm.{tap}") for tap, part in enumerate(parts)]
        joined = np.concatenate(parts)
        if self.config.input_norm:
            joined = self.norm(joined, "input_norm")
        return self.tensors["fc"] @ joined

    def turned(self, head, entry):
        """A head's numbers, rotated by halves; frequencies and angles are float32 in training."""
        out, half = head.copy(), len(head) // 2
        for i in range(half):
            share = float(np.float32(2 * i) / np.float32(len(head)))
            wave = np.float32(self.layer.rotary_base**share)
            angle = float(np.float32(entry) * (np.float32(1) / wave))
            cosine, sine = float(np.float32(math.cos(angle))), float(np.float32(math.sin(angle)))
            out[i] = head[i] * cosine - head[i + half] * sine
            out[i + half] = head[i + half] * cosine + head[i] * sine
        return out

    def attended(self, queries, text):
        group = self.layer.num_attention_heads // self.layer.num_key_value_heads
        seen, outs = text.pairs[-(self.layer.windows[0] or len(text.pairs)) :], []
        for index, query in enumerate(queries):
            keys, values = zip(*(pair[index // group] for pair in seen), strict=True)
            scores = [query @ key / math.sqrt(self.layer.head_size) for key in keys]
            weights = [math.exp(score - max(scores)) for score in scores]
            total = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
            outs.append(total)
        return np.concatenate(outs)

    def pair(self, text, state, token):
        """Feed a text's next pair: the log probabilities by the target's id, and the state that
        the next pair takes if its token is drafted."""
        entry = text.first + len(text.pairs)
        embedding = self.tensors["embedding"][token]
        halves = [self.norm(embedding, "embedding_norm"), self.norm(state, "hidden_norm")]
        residual = halves[1] if self.config.norm_before_residual else state
        if self.mutant == "residual":
            residual = embedding
        joined = np.concatenate(halves[::-1] if self.mutant == "halves" else halves)
        q, k, v = (
            np.split(self.tensors[name] @ joined, len(self.tensors[name]) // self.layer.head_size)
            for name in "qkv"
        )
        text.pairs.append([(self.turned(a, entry), b) for a, b in zip(k, v, strict=True)])
        seen = self.attended([self.turned(query, entry) for query in q], text)
        middle = residual + self.tensors["o"] @ seen
        x = self.norm(middle, "post_norm")
        gate = self.tensors["gate"] @ x
        up = self.tensors["up"] @ x
        out = middle + self.tensors["down"] @ (gate / (1 + np.exp(-gate)) * up)
        normed = self.norm(out, "norm")
        logits = self.tensors["lm_head"] @ normed
        logs = logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())
        fed_back = self.config.norm_output or self.mutant == "feedback"
        return dict(zip(self.ids, logs.tolist(), strict=True)), normed if fed_back else out
