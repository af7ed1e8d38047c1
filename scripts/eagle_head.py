"""An EAGLE-3 head in PyTorch, as its training needs it: forward, loss, acceptance and files.

Its parameters have the names of SpecForge's files. Pair t joins the target's states at token t
with the embedding of token t + 1. Step k of a training-time test runs all pairs again, each with
the head's own output of the step before and the token that really follows: index t has then seen
what k drafted tokens after token t would see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM

STEP_WEIGHT = 0.8
"""The loss of each step counts so much of the one before."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a head, by the keys of its config.json."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float


class Batch(NamedTuple):
    """Texts, one a row, and what the target says to them."""

    ids: Tensor
    """int64 [rows, tokens]."""
    predicts: Tensor
    """bool [rows, tokens]: the next token is one that the target wrote or should write."""
    taps: Tensor
    """[rows, tokens, 3 x hidden]: the states that the head reads."""
    last: Tensor
    """[rows, tokens, hidden]: the states that the target's lm_head reads."""
    best: Tensor
    """int64 [rows, tokens]: the target's most probable next token; -1 where not `predicts`."""


class Attention(nn.Module):
    """Attention over all pairs up to one's own, and over one's own of the steps before."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        width, size = 2 * sizes.hidden_size, sizes.head_dim
        self.q_proj = nn.Linear(width, sizes.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(width, sizes.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(width, sizes.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(sizes.num_attention_heads * size, sizes.hidden_size, bias=False)

    def forward(self, joined: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        q, k, v = (self._heads(one(joined)) for one in (self.q_proj, self.k_proj, self.v_proj))
        groups = self.sizes.num_attention_heads // self.sizes.num_key_value_heads
        q, k = self._rotate(q, len(past)), self._rotate(k, len(past))
        past.append((k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)))
        return self.o_proj(_attend(q, past).transpose(1, 2).flatten(2))

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (-1, self.sizes.head_dim)).transpose(1, 2)

    def _rotate(self, rows: Tensor, step: int) -> Tensor:
        half = self.sizes.head_dim // 2
        rates = self.sizes.rope_theta ** -(torch.arange(half) / half)
        angles = (torch.arange(rows.shape[2]) + step)[:, None] * rates
        a, b = rows.float().chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(rows.dtype)


def _attend(q: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
    (keys, values), *own = past
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    scores = [(q @ keys.mT).masked_fill(later, -torch.inf)]
    scores += [(q * key).sum(-1, keepdim=True) for key, _ in own]
    shares = (torch.cat(scores, -1).float() * q.shape[-1] ** -0.5).softmax(-1).to(q.dtype)
    length = q.shape[2]
    out = shares[..., :length] @ values
    for n, (_, value) in enumerate(own):
        out = out + shares[..., length + n, None] * value
    return out


class Mlp(nn.Module):
    """The gated network of a Llama's layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.up_proj = nn.Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate_size, sizes.hidden_size, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(rows)) * self.up_proj(rows))


class Layer(nn.Module):
    """The one decoder layer: it reads embedding and state, and adds to the state."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, eps = sizes.hidden_size, sizes.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(width, eps)
        self.hidden_norm = nn.RMSNorm(width, eps)
        self.self_attn = Attention(sizes)
        self.post_attention_layernorm = nn.RMSNorm(width, eps)
        self.mlp = Mlp(sizes)

    def forward(
        self, embedded: Tensor, states: Tensor, past: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        joined = torch.cat([self.input_layernorm(embedded), self.hidden_norm(states.float())], -1)
        middle = states + self.self_attn(joined, past)
        return middle + self.mlp(self.post_attention_layernorm(middle))


class EagleHead(nn.Module):
    """A head that begins as what its target's last layer would make of the highest tap.

    Args:
        target: the model that it drafts for, whose embedding it shares.
        draft_ids: int64 [draft vocabulary], rising: the target's ids of its tokens.
    """

    def __init__(
        self, target: LlamaForCausalLM, sizes: Sizes, boundaries: list[int], draft_ids: Tensor
    ) -> None:
        super().__init__()
        self.sizes, self.boundaries, self.draft_ids = sizes, boundaries, draft_ids
        self.fc = nn.Linear(len(boundaries) * sizes.hidden_size, sizes.hidden_size, bias=False)
        self.midlayer = Layer(sizes)
        self.norm = nn.RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.draft_vocab_size, bias=False)
        self.float()
        self._embedding = [target.model.embed_tokens.weight.detach().float()]  # no parameter
        self._targets_rows = [target.lm_head.weight.detach().float()[draft_ids]]
        with torch.no_grad():
            self._start(target)

    def _start(self, target: LlamaForCausalLM) -> None:
        last, mine = target.model.layers[-1], self.midlayer
        self.fc.weight.mul_(0.1)[:, -self.sizes.hidden_size :] += torch.eye(self.sizes.hidden_size)
        mine.self_attn.o_proj.weight.mul_(0.1)
        mine.hidden_norm.weight.copy_(last.input_layernorm.weight)
        mine.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
        gate, up, down = (
            getattr(last.mlp, f"{name}_proj").weight.float() for name in ("gate", "up", "down")
        )
        reach = gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)
        kept = reach.topk(self.sizes.intermediate_size).indices.sort().values
        mine.mlp.gate_proj.weight.copy_(gate[kept])
        mine.mlp.up_proj.weight.copy_(up[kept])
        mine.mlp.down_proj.weight.copy_(down[:, kept])
        self.norm.weight.copy_(target.model.norm.weight)
        self.lm_head.weight.copy_(self._targets_rows[0])

    def embed(self, ids: Tensor) -> Tensor:
        """The target's embeddings."""
        return functional.embedding(ids, self._embedding[0])

    def unroll(self, batch: Batch, steps: int) -> Iterator[Tensor]:
        """The head's outputs [rows, tokens, hidden] after 1, 2, ... tokens of its own."""
        states, past = self.fc(batch.taps.float()), []
        embedded = self.embed(batch.ids)
        for step in range(steps):
            states = self.midlayer(embedded.roll(-1 - step, 1), states.float(), past)
            yield states

    def loss(self, batch: Batch, steps: int) -> Tensor:
        """Cross-entropy with the target's law over the draft vocabulary, all steps weighted."""
        known = batch.predicts & torch.isin(batch.best, self.draft_ids)
        rows, places = known.nonzero(as_tuple=True)
        laws = (batch.last[rows, places].float() @ self._targets_rows[0].T).float().softmax(-1)
        total = torch.zeros(())
        for step, states in enumerate(self.unroll(batch, steps)):
            kept = places > step
            drafted = states[rows[kept], places[kept] - 1 - step]
            logs = self.lm_head(self.norm(drafted)).float().log_softmax(-1)
            total = total - STEP_WEIGHT**step * (laws[kept] * logs).sum(-1).mean()
        return total

    @torch.no_grad()
    def hits(self, batch: Batch, steps: int) -> Tensor:
        """Count chains: int64 [2, steps], those that reach each depth and those right there."""
        counts = torch.zeros(2, steps, dtype=torch.long)
        alive = torch.ones_like(batch.predicts)
        for step, states in enumerate(self.unroll(batch, steps)):
            best = self.draft_ids[self.lm_head(self.norm(states)).argmax(-1)]
            alive &= batch.predicts.roll(-1 - step, 1)
            alive[:, -1 - step :] = False
            counts[0, step] = alive.sum()
            alive &= best == batch.best.roll(-1 - step, 1)
            counts[1, step] = alive.sum()
        return counts

    def save(self, folder: Path) -> None:
        """Write SpecForge's files, in float16; each is complete before it takes its place."""
        folder.mkdir(parents=True, exist_ok=True)
        size = self.sizes.draft_vocab_size
        tensors = {name: value.detach().half() for name, value in self.state_dict().items()}
        tensors["d2t"] = self.draft_ids - torch.arange(size)
        tensors["t2d"] = torch.zeros(self.sizes.vocab_size, dtype=torch.bool)
        tensors["t2d"][self.draft_ids] = True
        part = folder / "model.safetensors.new"
        save_file(tensors, str(part), metadata={"format": "pt"})
        part.chmod(0o644)
        part.replace(folder / "model.safetensors")
        text = json.dumps(self._config(), indent=2) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Take the weights of a head with the same sizes and draft vocabulary."""
        tensors = load_file(folder / "model.safetensors")
        self.load_state_dict({name: tensors[name].float() for name in self.state_dict()})

    def _config(self) -> dict[str, Any]:
        taps = {
            "eagle_aux_hidden_state_layer_ids": self.boundaries,
            "use_aux_hidden_state": True,
        }
        return {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
            **asdict(self.sizes), "num_hidden_layers": 1, "hidden_act": "silu",
            "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "float16",
            "eagle_config": taps,
        }  # fmt: skip


def read_draft_ids(folder: Path) -> Tensor:
    """The target's ids of a head's draft vocabulary."""
    return load_file(folder / "model.safetensors")["t2d"].nonzero().flatten()
