"""The loop of `generate`: drafts, forwards, choices and what is learnt of them."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from trtla.extras.hosts.attention import CacheEnd, Layout, ancestors, layout_of
from trtla.extras.hosts.trees import ModelTrees, Row, RowDrafts
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import NO_DRAFT, Draft, TopRows, depths
from trtla.runtime.sampling.draw import draw_at
from trtla.runtime.sampling.noise import uniform
from trtla.runtime.tree.library import READ
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

_MOST_FED = 512
"""Most drafted tokens of a step over all rows."""
SEEDS = 2**63
_ON_CPU = CostTable.of(
    [(1, 0.053), (2, 0.088), (4, 0.097), (8, 0.111), (16, 0.14), (32, 0.2), (128, 0.6)]
)
"""Measured in float32: a second token makes products of vectors products of matrices."""
_ELSEWHERE = CostTable.of([(1, 0.02), (16, 0.0204), (64, 0.022), (256, 0.03)])
"""An estimate for GPUs, whose time goes to launching kernels."""
_TYPES = {"token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids"}
"""Inputs that transformers passes to models for each token besides its position."""
_UNFILTERED = SamplingParams(temperature=1.0)  # processors have applied temperature and filters


class ModelState:
    """The state of a model for as long as it lives."""

    def __init__(self, model: Any) -> None:
        self._layout: list[Layout | None] = []
        parameters = inspect.signature(model.forward).parameters
        self.takes_positions = "position_ids" in parameters
        self._costs = _ON_CPU if model.device.type == "cpu" else _ELSEWHERE
        self._vocab_size = model.config.get_text_config(decoder=True).vocab_size

    def layout(self, model: Any) -> Layout | None:
        """Return its layout for tree masks, found out at the first call."""
        if not self._layout:
            self._layout.append(layout_of(model))
        return self._layout[0]

    @cached_property
    def trees(self) -> ModelTrees:
        return ModelTrees(self._vocab_size, self._costs)


@dataclass(frozen=True, slots=True)
class Choice:
    """The rules by which tokens are chosen and texts end."""

    processor: Any
    criteria: Any
    config: Any
    seed: int | None
    streamer: Any

    def row_seed(self, row: int) -> int:
        return ((self.seed or 0) + row) % SEEDS

    def sampling(self, row: int) -> SamplingParams:
        if not self.config.do_sample:
            return SamplingParams()
        heat = self.config.temperature
        return SamplingParams(temperature=1.0 if heat is None else heat, seed=self.row_seed(row))

    def tokens(self, scores: Tensor, positions: Sequence[int]) -> Tensor:
        """Choose the token of each row; `positions` are their places in the rows' texts."""
        if not self.config.do_sample:
            return scores.argmax(-1)
        noise = [uniform(self.row_seed(row), place) for row, place in enumerate(positions)]
        drawn = draw_at(scores.float().cpu().numpy(), _UNFILTERED, noise)
        return torch.tensor(drawn, device=scores.device)


@dataclass(slots=True)
class _Walk:
    """A row's way through its draft."""

    draft: Draft
    tokens: list[int] = field(default_factory=list)
    """Those that the row has got."""
    frontier: list[int] = field(default_factory=lambda: [0])
    """The nodes that it stands at, which carry the same text."""
    children: dict[tuple[int, int], list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.children = self.draft.children()

    def go(self, token: int) -> bool:
        """Step to the nodes of a token; False: there is none."""
        found = [one for node in self.frontier for one in self.children.get((node, token), ())]
        self.frontier = found or self.frontier
        return bool(found)

    @property
    def path(self) -> tuple[int, ...]:
        return self.draft.path(self.frontier[0])

    def kept(self, count: int) -> list[int]:
        """Return so many nodes of its path; what stands for a row that has ended is never seen."""
        return [*self.path, *range(1, count + 1)][:count]


class DecodingRun:
    """One call: a batch from its prompts to its texts."""

    def __init__(
        self, model: Any, known: ModelState, end: CacheEnd, choice: Choice, ids: Tensor,
        model_kwargs: dict[str, Any],
    ) -> None:  # fmt: skip
        self._model, self._known, self._end, self._choice = model, known, end, choice
        self._ids, self._kwargs = ids, model_kwargs
        self._prompt_len = ids.shape[1]
        mask = model_kwargs.get("attention_mask")
        self._padded = mask is not None
        self._valid = torch.ones_like(ids) if mask is None else mask.long()
        kept = self._valid[:, self._valid.shape[1] - ids.shape[1] :].bool()
        self._texts = [row[keep].tolist() for row, keep in zip(ids, kept, strict=True)]
        self._going = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        self._on = [True] * len(ids)  # the same, where it is read
        self._ends = any(hasattr(one, "eos_token_id") for one in choice.criteria)
        self._scores: list[Tensor] = []
        self._logits: list[Tensor] = []
        places = model_kwargs.get("position_ids")
        self._last = (self._valid.sum(-1, keepdim=True) - 1) if places is None else places[:, -1:]
        """The position of each prompt's last token."""

    def decode(self, layout: Layout | None, triple: LookaheadConfig | None, drafts: bool) -> None:
        left = self._choice.config.max_length - self._prompt_len
        logits = self._prefill()
        self._end.begin()
        if not drafts or (triple is not None and triple.is_autoregressive):
            self._choose(logits, [NO_DRAFT] * len(self._ids))
            while any(self._on):
                self._step(None, None)
            return
        texts = [text or [0] for text in self._texts]
        rows = [Row(t, self._choice.sampling(i), left) for i, t in enumerate(texts)]
        with self._known.trees.open(rows, triple) as row_drafts:
            self._learn(row_drafts, logits, self._choose(logits, [NO_DRAFT] * len(self._ids)))
            while any(self._on):
                self._step(row_drafts, layout)

    def _prefill(self) -> Tensor:
        outputs = self._model._prefill(self._ids, self._choice.config, self._kwargs)
        self._kwargs = {k: v for k, v in self._kwargs.items() if k != "logits_to_keep"}
        size = len(self._end)
        if self._valid.shape[1] != size:  # prompts of embeddings, or without their cached part
            missing = size - self._valid.shape[1]
            ones = self._valid.new_ones(len(self._ids), max(0, missing))
            self._valid = torch.cat([ones, self._valid], -1)[:, -size:]
        logits: Tensor = outputs.logits[:, -1:]
        return logits

    def _step(self, row_drafts: RowDrafts | None, layout: Layout | None) -> None:
        started = time.perf_counter()
        going = [row for row, on in enumerate(self._on) if on]
        drafts = [NO_DRAFT] * len(self._ids)
        if row_drafts is not None:
            room = self._end.room
            most = _MOST_FED if room is None else min(_MOST_FED, max(0, room - 1))
            for row, draft in row_drafts.plan(going, most, chains=layout is None).items():
                drafts[row] = draft
        logits = self._forward(drafts, layout)
        before = self._ids.shape[1]
        walks = self._choose(logits, drafts)
        fed, count = logits.shape[1], self._ids.shape[1] - before
        self._end.keep([walk.kept(count - 1) for walk in walks], fed)
        self._valid = torch.cat([self._valid, self._valid.new_ones(len(self._ids), count)], -1)
        if row_drafts is not None:
            self._learn(row_drafts, logits, walks)
            seconds = time.perf_counter() - started
            row_drafts.record(fed * len(going), len(going), count * len(going), seconds)

    def _forward(self, drafts: Sequence[Draft], layout: Layout | None) -> Tensor:
        """Feed the last tokens and the drafts, the shorter ones filled up to the longest."""
        size = max(draft.size for draft in drafts)
        is_tree = any(draft.parents != tuple(range(draft.size - 1)) for draft in drafts)
        fill = [size - draft.size for draft in drafts]
        drafted = [[*d.tokens, *[0] * n] for d, n in zip(drafts, fill, strict=True)]
        after = self._ids.new_tensor(drafted).view(len(drafts), size - 1)
        ids = torch.cat([self._ids, after], -1)
        deep = self._ids.new_tensor([[*depths(d.parents), *range(d.size, size)] for d in drafts])
        inputs = self._model.prepare_inputs_for_generation(
            ids, next_sequence_length=size, **self._step_kwargs(deep)
        )
        if is_tree and layout is not None:
            inputs["attention_mask"] = self._tree_mask(drafts, size, deep, layout)
        logits: Tensor = self._model(**inputs, return_dict=True).logits
        return logits

    def _step_kwargs(self, deep: Tensor) -> dict[str, Any]:
        """Return what transformers prepares a step's inputs of, as for fed tokens this deep."""
        kwargs, size = dict(self._kwargs), deep.shape[1]
        done = self._ids.shape[1] - self._prompt_len
        if self._known.takes_positions:
            # Nodes behind the longest possible text are never accepted, and a model may end there.
            most = max(0, self._choice.config.max_length - self._ids.shape[1])
            kwargs["position_ids"] = self._last + done + deep.clamp(max=most)
        if self._padded:
            ones = self._valid.new_ones(len(deep), size)
            kwargs["attention_mask"] = torch.cat([self._valid, ones], -1)
        for name in _TYPES & kwargs.keys():
            if (types := kwargs[name]) is not None:
                last = types[..., -1:] * (name != "mm_token_type_ids")  # tokens are text
                kwargs[name] = last.repeat_interleave(size, -1)
        return kwargs

    def _tree_mask(self, drafts: Sequence[Draft], size: int, deep: Tensor, layout: Layout) -> Any:
        device, start = self._ids.device, len(self._end)
        slots = self._end.slots(size)
        seen = torch.zeros(len(drafts), size, slots, dtype=torch.bool, device=device)
        seen[:, :, :start] = self._valid.bool()[:, None]
        seen[:, :, start : start + size] = ancestors(drafts, size).to(device)
        places = torch.arange(slots, device=device).repeat(len(drafts), 1)
        places[:, start : start + size] = start + deep
        distance = (start + deep)[:, None, :, None] - places[:, None, None, :]
        return layout.masks(seen[:, None], distance, self._model.dtype)

    def _choose(self, logits: Tensor, drafts: Sequence[Draft]) -> list[_Walk]:
        """Append tokens to all rows as long as every one that goes on has them in its draft."""
        walks = [_Walk(draft) for draft in drafts]
        rows = torch.arange(len(walks), device=logits.device)
        while True:
            went = self._on
            nodes = torch.tensor([walk.frontier[0] for walk in walks], device=logits.device)
            tokens = self._append(logits[rows, nodes].to(self._ids.device, torch.float32))
            for walk, token, on in zip(walks, tokens, went, strict=True):
                walk.tokens += [token] if on else []
            steps = zip(walks, tokens, self._on, strict=True)
            found = [walk.go(token) for walk, token, on in steps if on]
            if not found or not all(found):
                return walks

    def _append(self, logits: Tensor) -> list[int]:
        """Choose and append the next token of each row."""
        choice, config = self._choice, self._choice.config
        scores = choice.processor(self._ids, logits.clone() if config.output_logits else logits)
        done = self._ids.shape[1] - self._prompt_len
        tokens = choice.tokens(scores, [len(text) + done for text in self._texts])
        if self._ends:
            tokens = torch.where(self._going, tokens, config._pad_token_tensor.to(tokens.device))
        if config.return_dict_in_generate and config.output_scores:
            self._scores.append(scores)
        if config.return_dict_in_generate and config.output_logits:
            self._logits.append(logits)
        self._ids = torch.cat([self._ids, tokens[:, None]], -1)
        kept = tuple(self._scores) if self._scores else None
        self._going &= ~choice.criteria(self._ids, kept)
        if choice.streamer is not None:
            choice.streamer.put(tokens.cpu())
        found, on = torch.stack((tokens, self._going.to(tokens.dtype))).tolist()
        self._on = [bool(one) for one in on]
        return list(found)

    def _learn(self, row_drafts: RowDrafts, logits: Tensor, walks: Sequence[_Walk]) -> None:
        for row, walk in enumerate(walks):
            if not walk.tokens:  # it had ended before
                continue
            size, read = walk.draft.size, list(walk.draft.read)
            tops = _top_rows(logits[row, :size]) if row_drafts.wants_rows(row) else None
            seen = logits[row, read].argmax(-1).tolist() if read else ()
            path = walk.path[: len(walk.tokens)]
            row_drafts.learn(row, path, tops, seen, walk.tokens)

    def result(self) -> Any:
        """Return what `model.generate` returns."""
        if self._choice.streamer is not None:
            self._choice.streamer.end()
        config = self._choice.config
        if not config.return_dict_in_generate:
            return self._ids
        return GenerateDecoderOnlyOutput(
            sequences=self._ids,  # type: ignore[arg-type]
            scores=tuple(self._scores) if config.output_scores else None,  # type: ignore[arg-type]
            logits=tuple(self._logits) if config.output_logits else None,  # type: ignore[arg-type]
            past_key_values=self._end.cache,
        )


def _top_rows(logits: Tensor) -> TopRows:
    """The most probable tokens after each fed node."""
    count = min(READ, logits.shape[-1])
    logits = logits.float()
    best, ids = logits.topk(count)
    logs = best - logits.logsumexp(-1, keepdim=True)
    room = (0, READ - count)
    return TopRows(
        tuple(range(len(logits))),
        torch.nn.functional.pad(ids.int(), room, value=-1).cpu().numpy(),
        torch.nn.functional.pad(logs, room, value=-100.0).cpu().numpy(),
    )
