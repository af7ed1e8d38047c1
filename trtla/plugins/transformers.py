"""Candidate trees in transformers: `model.generate(**inputs, custom_generate=trtla.generate)`.

transformers prepares inputs, cache, processors and criteria as always and calls `generate` for the
loop. A step feeds the last token and a draft of each row; what the target chooses after each node
decides. The rows of a batch stay equally long, so all go on by what the least accepted one does.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerationMixin

from trtla.errors import TrtlaError, UsageError
from trtla.plugins.attention import CacheEnd, Layout, ancestors, layout_of
from trtla.plugins.trees import ModelTrees, Row, RowDrafts
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import NO_DRAFT, Draft, TopRows, depths
from trtla.runtime.sampling.draw import draw_at
from trtla.runtime.sampling.noise import uniform
from trtla.runtime.tree.library import READ
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

_MOST_FED = 512
"""Most drafted tokens of a step over all rows."""
_SEEDS = 2**63
_ON_CPU = CostTable.of(
    [(1, 0.053), (2, 0.088), (4, 0.097), (8, 0.111), (16, 0.14), (32, 0.2), (128, 0.6)]
)
"""Measured in float32: a second token makes products of vectors products of matrices."""
_ELSEWHERE = CostTable.of([(1, 0.02), (16, 0.0204), (64, 0.022), (256, 0.03)])
"""An estimate for GPUs, whose time goes to launching kernels."""
_UNFILTERED = SamplingParams(temperature=1.0)  # processors have applied temperature and filters


class _Model:
    """What is known of a model for as long as it lives."""

    def __init__(self, model: Any) -> None:
        self._layout: list[Layout | None] = []
        parameters = inspect.signature(model.forward).parameters
        self.takes_positions = "position_ids" in parameters
        self.takes_mask = "attention_mask" in parameters
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


_models: WeakKeyDictionary[Any, _Model] = WeakKeyDictionary()
_lock = threading.Lock()


def _known(model: Any) -> _Model:
    with _lock:
        if model not in _models:
            _models[model] = _Model(model)
        return _models[model]


def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    seed: int | None = None,
    lookahead: LookaheadConfig | Sequence[int] | str | None = None,
    drafts: bool = True,
    **model_kwargs: Any,
) -> Any:
    """Decode with drafts of candidate trees: pass it to transformers as `custom_generate`.

    Greedy texts are those of `model.generate`, as far as the model's arithmetic gives a token the
    same logits whatever is fed beside it. Sampled ones depend on the seed alone: drafts never
    change them. Models whose cache does not go back decode without drafts.

    Args:
        seed: of sampling; by default drawn from torch's generator, as `torch.manual_seed` has it.
        lookahead: a triple (W, N, G): draft with lookahead's window and pool instead of the tree.
        drafts: False decodes without drafts.

    Raises:
        UsageError: an encoder-decoder, beams, or another mode than greedy and sampling.
    """
    called = _arguments()
    streamer = model_kwargs.pop("streamer", None) or called.get("streamer")
    triple = None if lookahead is None else LookaheadConfig.parse(lookahead)
    _check(model, generation_config, called.get("assistant_model"))
    if generation_config.do_sample and seed is None:
        seed = int(torch.randint(_SEEDS - 1, ()))
    known = _known(model)
    end = CacheEnd.of(model_kwargs.get("past_key_values"))
    places = model_kwargs.get("position_ids")
    in_space = places is not None and places.dim() > 2  # of images as well as of texts
    if end is None or in_space or (end.is_static and not known.takes_positions):
        return _plain(model, input_ids, logits_processor, stopping_criteria, generation_config,
                      seed, {**model_kwargs, "streamer": streamer})  # fmt: skip
    layout = known.layout(model) if drafts else None
    end = end.whole() if layout else end
    model_kwargs["past_key_values"] = end.cache
    if triple is not None and drafts and not (layout and end.moves):
        raise UsageError(
            f"lookahead {triple} feeds a tree, and {type(model).__name__} takes no tree mask here",
            "omit lookahead: chains are drafted, or load with attn_implementation='sdpa'",
        )
    choice = _Choice(logits_processor, stopping_criteria, generation_config, seed, streamer)
    run = _Run(model, known, end, choice, input_ids, model_kwargs)
    run.decode(layout if end.moves else None, triple, drafts)
    return run.result()


def _arguments() -> dict[str, Any]:
    """Return the arguments of the call of `model.generate`, which hands on only some of them."""
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return dict(frame.f_locals) if frame is not None else {}


def _check(model: Any, config: Any, assistant: Any) -> None:
    """Refuse what has no drafts."""
    if not hasattr(model, "_prefill") or not hasattr(DynamicCache, "activate_past_recording"):
        raise TrtlaError(
            f"transformers {version('transformers')} has no cache that goes back",
            "use a release from 5.20 on",
        )
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise UsageError(
            f"{name} is an encoder-decoder, and custom_generate=trtla.generate drafts for decoders",
            "omit custom_generate",
        )
    if assistant is not None:
        raise UsageError(
            "assistant_model drafts, and custom_generate=trtla.generate drafts as well",
            "pass one of both",
        )
    if config.num_beams > 1:
        raise UsageError(
            f"num_beams is {config.num_beams}, and beams are not drafted for",
            "use num_beams=1, or omit custom_generate",
        )
    if config.get_generation_mode() not in ("greedy_search", "sample", "assisted_generation"):
        raise UsageError(
            f"{config.get_generation_mode().value} is neither greedy decoding nor sampling",
            "omit custom_generate",
        )
    if config.return_dict_in_generate and (config.output_attentions or config.output_hidden_states):
        raise UsageError(
            "output_attentions and output_hidden_states are not collected from drafted steps",
            "omit them, or custom_generate",
        )


def _plain(
    model: Any, ids: Tensor, processor: Any, criteria: Any, config: Any, seed: int | None,
    model_kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """Decode without drafts in transformers' own loop."""
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        return model._sample(
            ids, logits_processor=processor, stopping_criteria=criteria, generation_config=config,
            **model_kwargs,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Choice:
    """How tokens are chosen and where texts end."""

    processor: Any
    criteria: Any
    config: Any
    seed: int | None
    streamer: Any

    def row_seed(self, row: int) -> int:
        return ((self.seed or 0) + row) % _SEEDS

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
        self.children = {}
        for node in self.draft.candidates if self.draft.tokens else ():
            edge = (self.draft.parents[node - 1], self.draft.tokens[node - 1])
            self.children.setdefault(edge, []).append(node)

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


class _Run:
    """One call: a batch from its prompts to its texts."""

    def __init__(
        self, model: Any, known: _Model, end: CacheEnd, choice: _Choice, ids: Tensor,
        model_kwargs: dict[str, Any],
    ) -> None:  # fmt: skip
        self._model, self._known, self._end, self._choice = model, known, end, choice
        self._ids, self._kwargs = ids, model_kwargs
        self._prompt_len = ids.shape[1]
        mask = model_kwargs.get("attention_mask")
        self._padded = mask is not None
        self._valid = torch.ones_like(ids) if mask is None else mask.long()
        kept = self._valid[:, -ids.shape[1] :].bool()
        self._texts = [row[keep].tolist() for row, keep in zip(ids, kept, strict=True)]
        self._going = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        self._ends = any(hasattr(one, "eos_token_id") for one in choice.criteria)
        self._scores: list[Tensor] = []
        self._logits: list[Tensor] = []

    def decode(self, layout: Layout | None, triple: LookaheadConfig | None, drafts: bool) -> None:
        left = self._choice.config.max_length - self._prompt_len
        logits = self._prefill()
        self._end.begin()
        if not drafts or (triple is not None and triple.is_autoregressive):
            self._choose(logits, [NO_DRAFT] * len(self._ids))
            while self._going.any():
                self._step(None, None)
            return
        texts = [text or [0] for text in self._texts]
        rows = [Row(t, self._choice.sampling(i), left) for i, t in enumerate(texts)]
        with self._known.trees.open(rows, triple) as row_drafts:
            self._learn(row_drafts, logits, self._choose(logits, [NO_DRAFT] * len(self._ids)))
            while self._going.any():
                self._step(row_drafts, layout)

    def _prefill(self) -> Tensor:
        outputs = self._model._prefill(self._ids, self._choice.config, self._kwargs)
        size = len(self._end)
        if self._valid.shape[1] != size:  # prompts of embeddings, or without their cached part
            missing = size - self._valid.shape[1]
            ones = self._valid.new_ones(len(self._ids), max(0, missing))
            self._valid = torch.cat([ones, self._valid], -1)[:, -size:]
        logits: Tensor = outputs.logits[:, -1:]
        return logits

    def _step(self, row_drafts: RowDrafts | None, layout: Layout | None) -> None:
        started = time.perf_counter()
        going = self._going.nonzero()[:, 0].tolist()
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
        ids = torch.cat([self._ids[:, -1:], after], -1)
        deep = [[*depths(d.parents), *range(d.size, size)] for d in drafts]
        last = self._valid.sum(-1, keepdim=True)
        left = max(0, self._choice.config.max_length - self._ids.shape[1])
        # Nodes behind the longest possible text are never accepted, and a model may end there.
        positions = torch.minimum(last + self._ids.new_tensor(deep), last + left)
        options: dict[str, Any] = {"position_ids": positions} if self._known.takes_positions else {}
        if is_tree and layout is not None:
            options["attention_mask"] = self._tree_mask(drafts, size, positions, layout)
        elif self._known.takes_mask and self._padded:
            ones = self._valid.new_ones(len(ids), size)
            options["attention_mask"] = torch.cat([self._valid, ones], -1)
        outputs = self._model(
            input_ids=ids, past_key_values=self._end.cache, use_cache=True, return_dict=True,
            **options,
        )  # fmt: skip
        logits: Tensor = outputs.logits
        return logits

    def _tree_mask(
        self, drafts: Sequence[Draft], size: int, positions: Tensor, layout: Layout
    ) -> Any:
        device, start = self._ids.device, len(self._end)
        slots = self._end.slots(size)
        seen = torch.zeros(len(drafts), size, slots, dtype=torch.bool, device=device)
        seen[:, :, :start] = self._valid.bool()[:, None]
        seen[:, :, start : start + size] = ancestors(drafts, size).to(device)
        places = torch.zeros(len(drafts), slots, dtype=torch.long, device=device)
        places[:, :start] = self._valid.cumsum(-1) - 1
        places[:, start : start + size] = positions
        distance = positions[:, None, :, None] - places[:, None, None, :]
        return layout.masks(seen[:, None], distance, self._model.dtype)

    def _choose(self, logits: Tensor, drafts: Sequence[Draft]) -> list[_Walk]:
        """Append tokens to all rows as long as every one that goes on has them in its draft."""
        walks = [_Walk(draft) for draft in drafts]
        rows = torch.arange(len(walks), device=logits.device)
        while True:
            going = self._going.tolist()
            nodes = torch.tensor([walk.frontier[0] for walk in walks], device=logits.device)
            tokens = self._append(logits[rows, nodes].to(self._ids.device, torch.float32))
            for walk, token, on in zip(walks, tokens, going, strict=True):
                walk.tokens += [token] if on else []
            steps = zip(walks, tokens, self._going.tolist(), strict=True)
            found = [walk.go(token) for walk, token, on in steps if on]
            if not found or not all(found):
                return walks

    def _append(self, logits: Tensor) -> list[int]:
        """Choose and append the next token of each row."""
        choice, config = self._choice, self._choice.config
        scores = choice.processor(self._ids, logits.clone())
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
        found: list[int] = tokens.tolist()
        return found

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
    logs, ids = logits.float().log_softmax(-1).topk(count)
    room = (0, READ - count)
    return TopRows(
        tuple(range(len(logits))),
        torch.nn.functional.pad(ids.int(), room, value=-1).cpu().numpy(),
        torch.nn.functional.pad(logs, room, value=-100.0).cpu().numpy(),
    )
