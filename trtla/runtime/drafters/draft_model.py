"""Draft models: a second, smaller model proposes the target's next tokens.

It has its own K/V cache, whose lengths follow the target's text: rejected tokens are forgotten. All
sequences of a step are drafted in the same forwards. Every token is drawn as the target draws, with
the same noise, so that two equal models always agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from trtla.errors import trtllm_cannot
from trtla.runtime.device import Device, resolve_device
from trtla.runtime.draft import NO_DRAFT, Draft, Drafter, NoDrafter, alike
from trtla.runtime.limits import MAX_CHUNK, ExecutorLimits
from trtla.runtime.models.forward import SPARE_BLOCKS, Model
from trtla.runtime.models.kv_cache import CacheNeed, KVCache, block_bytes
from trtla.runtime.models.load import load_engine, model_dtype, read_in
from trtla.runtime.request import NO_TOKEN, Request
from trtla.runtime.sampling.changes import changed, changed_rows
from trtla.runtime.sampling.draw import log_softmax, probabilities
from trtla.runtime.sampling.logits import Logits, fitted, host_rows, on_host
from trtla.runtime.sampling.predict import predict
from trtla.runtime.sequence import Feed
from trtla.runtime.sequence import Sequence as Sequence_
from trtla.runtime.stats import DraftStep, DraftTotals, GammaChoice
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import AUTOREGRESSIVE

if TYPE_CHECKING:
    from trtla.formats.engine import Engine

STEP_SIZES = (1, 2)
"""Tokens of a sequence in a forward: two after full acceptance, when the cache is one short. Longer
arrears are read like a prompt."""


def draft_limits(limits: ExecutorLimits) -> ExecutorLimits:
    """Return the limits of a draft model's forwards, from those of the target's executor.

    It feeds all sequences at once, even if a step of the target has no room for two tokens each.
    """
    most = max(limits.max_num_tokens, STEP_SIZES[-1] * limits.max_batch_size)
    return replace(limits, lookahead=AUTOREGRESSIVE, max_num_tokens=most)


@dataclass(frozen=True, slots=True)
class DraftFeed(Feed):
    """A draft model's feed: the text's last tokens, or the last drafted one."""

    drafted: tuple[int, ...] = ()
    """All drafted tokens so far; the text of the feed's last row ends with them."""

    def path(self, node: int) -> tuple[int, ...]:
        return self.drafted

    def mask(self, node: int) -> ndarray | None:
        """The tokens that the grammar allows there; None as well if that takes much computing."""
        grammar = self.sequence.constraint()
        return None if grammar is None else grammar.draft_mask(self.drafted)


class GammaPolicy:
    """The number of drafted tokens for one request, chosen once a step: gamma, or EGAG.

    EGAG, adaptive gamma guided by entropy, is the rule of "Speculative-Decoding" (FK fork):
    floor((1 - H / ln V) * gamma_max) within its bounds, then a moving average.
    """

    def __init__(self, settings: DrafterSettings, vocab_size: int) -> None:
        self.reads_entropy = settings.egag
        """True if `choose` needs the entropy of the first draft's distribution."""
        self._settings, self._most_entropy = settings, math.log(vocab_size)
        self._average: float | None = None

    def choose(self, entropy: float = 0.0) -> GammaChoice:
        """Choose gamma for the next step; the entropy is in nats."""
        settings, most = self._settings, self._settings.largest_gamma
        if not settings.egag:
            return GammaChoice(settings.gamma, settings.gamma)
        relative = entropy / self._most_entropy
        raw = min(max(math.floor((1 - relative) * most), settings.gamma_min), most)
        past = raw if self._average is None else self._average
        self._average = past if raw == past else settings.ema * past + (1 - settings.ema) * raw
        return GammaChoice(round(self._average), raw, relative)


class DraftModelDrafter(Drafter):
    """The drafter of one request, made by `DraftModelDrafters`.

    Invariant before a draft: the cache holds all of the text except its last one or two tokens, or
    less if no draft was made before.
    """

    def __init__(
        self, group: DraftModelDrafters, request: Request, settings: DrafterSettings, vocab: int
    ) -> None:
        self.sequence = Sequence_(request, AUTOREGRESSIVE, NoDrafter())
        self.policy = GammaPolicy(settings, vocab)
        self.rejects = settings.rejection and not request.sampling.greedy
        """True if rejection sampling verifies the drafts."""
        self.steps: list[DraftStep] = []
        """Steps with a draft."""
        self.drafted: list[int] = []
        self.draft_probs: list[ndarray] = []
        """The distributions that they were drawn from, if rejection sampling verifies them."""
        self.choice: GammaChoice | None = None
        """The policy's choice for this step; None: not made yet."""
        self._group = group
        self._text = group.known(request.input_ids)
        self._end = len(self._text) + request.sampling.max_output_len

    @property
    def room(self) -> int:
        """Tokens that can be accepted before the output's last one, which the target draws."""
        return self._end - len(self._text) - 1

    @property
    def gamma(self) -> int:
        return min(self.choice.gamma, self.room) if self.choice else 0

    @property
    def missing(self) -> int:
        """Tokens before the last one whose keys and values are not cached."""
        return len(self._text) - 1 - self.sequence.num_cached

    def propose(self) -> Draft:
        """Propose a chain of at most gamma tokens; the first call drafts for the whole batch."""
        if self in self._group.due:
            self._group.draft()
        draft_probs = np.stack(self.draft_probs) if self.draft_probs else None
        return replace(Draft.chain(self.drafted), draft_probs=draft_probs)

    def skip(self) -> None:
        """Skip the drafts of this step, and catch up with the text in a later one."""
        self._group.due.pop(self, None)

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        accepted = alike(self.drafted, committed)
        kept = min(len(self._text) + accepted, self.sequence.num_cached)
        if self.choice is not None:
            step = DraftStep(self.choice, len(self.drafted), accepted)
            self.steps.append(step)
            self._group.totals.add(step)
        self._text += self._group.known(committed)
        self.sequence.output_ids += committed
        self.sequence.num_cached = min(kept, len(self._text) - 1)
        self.drafted, self.draft_probs, self.choice = [], [], None
        self._group.due[self] = None

    def stretch(self, length: int) -> Feed:
        start = self.sequence.num_cached
        return Feed(self.sequence, tuple(self._text[start : start + length]), ())

    def feed(self) -> Feed:
        """Return the uncached one or two tokens of text and draft, and the last one's logits."""
        if self.drafted:
            last = (self.drafted[-1],)
            return DraftFeed(self.sequence, last, (0,), NO_DRAFT, tuple(self.drafted))
        tokens = tuple(self._text[self.sequence.num_cached :])
        draft = Draft(tokens[1:], (0,)) if len(tokens) > 1 else NO_DRAFT
        return DraftFeed(self.sequence, tokens, (len(tokens) - 1,), draft)

    def take(self, token: int) -> bool:
        """Draft a token; NO_TOKEN ends the draft. Return True if it was drafted."""
        if token == NO_TOKEN:
            self.choice = None
            return False
        self.drafted.append(token)
        return True

    def drawn_from(self, logits: ndarray) -> None:
        """Keep the distribution of logits [1, vocab], from which the last token was drawn."""
        self.draft_probs.append(probabilities(logits, self.sequence.request.sampling)[0])

    def close(self) -> None:
        self._group.forget(self)


class DraftModelDrafters:
    """Makes the drafters of an executor's requests and drafts for all due ones at once.

    Args:
        model: the draft model.
        cache: its own K/V cache; a request that has no room in it gets no drafts.
        settings: fixed gamma or EGAG, for requests without settings of their own.
        limits: those of the target's executor.
        totals: counts its steps; its own unless given.
        vocab_size: rows of its embedding; None: as many as the target's.
    """

    def __init__(
        self,
        model: Model[Any],
        cache: KVCache,
        settings: DrafterSettings,
        limits: ExecutorLimits,
        totals: DraftTotals | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.cache = cache
        self._vocab_size = vocab_size or limits.vocab_size
        self.totals = totals or DraftTotals()
        self._forward = model.step_forward(cache, draft_limits(limits), STEP_SIZES)
        self._row_sampler = model.row_sampler
        self._settings, self._limits = settings, limits
        self.due: dict[DraftModelDrafter, None] = {}
        """Drafters whose text has grown since their last draft, in order."""

    def drafter(
        self, request: Request, settings: DrafterSettings | None = None
    ) -> DraftModelDrafter:
        """Return the drafter of a request, which may bring its own gamma or EGAG."""
        chosen = settings or self._settings
        return DraftModelDrafter(self, request, chosen, self._limits.vocab_size)

    def known(self, ids: Sequence[int]) -> list[int]:
        """Map ids to this model's: padding ids that it lacks become its last one."""
        return [min(token, self._vocab_size - 1) for token in ids]

    def forget(self, drafter: DraftModelDrafter) -> None:
        """Release a drafter's blocks; it is never drafted for again."""
        self.due.pop(drafter, None)
        self.cache.pool.release(drafter.sequence.blocks)
        drafter.sequence.blocks = ()

    def reset(self) -> None:
        """Take the whole cache back: earlier drafters are not used again."""
        self.due = {}
        self.cache.pool.reset()

    def draft(self) -> None:
        """Draft for each request with new text; this step contains all of them."""
        due, self.due = self.due, {}
        drafting = [drafter for drafter in due if drafter.room > 0 and self._has_blocks(drafter)]
        self._catch_up(drafting)
        first = True
        while drafting:
            feeds = [drafter.feed() for drafter in drafting]
            logits = fitted(self._forward(feeds).logits, self._limits.vocab_size)
            self.totals.forwards += 1
            if first:
                _choose_gammas(drafting, logits)
            self._take(drafting, feeds, logits)
            first, drafting = False, [d for d in drafting if len(d.drafted) < d.gamma]

    def _has_blocks(self, drafter: DraftModelDrafter) -> bool:
        sequence = drafter.sequence
        if not sequence.blocks:
            sequence.blocks = self.cache.pool.allocate(sequence.max_cached) or ()
        return bool(sequence.blocks)

    def _catch_up(self, drafting: Sequence[DraftModelDrafter]) -> None:
        """Cache missing tokens of prompts, and of texts that grew without a draft."""
        while behind := [drafter for drafter in drafting if drafter.missing > 1]:
            feeds = list(_stretches(behind, self._limits.max_num_tokens))
            self._forward(feeds)
            for feed in feeds:
                feed.sequence.num_cached += feed.length

    def _take(
        self, drafting: Sequence[DraftModelDrafter], feeds: Sequence[Feed], logits: Logits
    ) -> None:
        predictions = predict(feeds, logits, self._row_sampler)
        judged: dict[int, DraftModelDrafter] = {}
        for drafter, feed, prediction in zip(drafting, feeds, predictions, strict=True):
            if drafter.gamma and drafter.take(prediction.draws[feed.rows[0]]) and drafter.rejects:
                judged[prediction.start] = drafter
            feed.sequence.num_cached += feed.length
        if judged:
            with changed(logits, changed_rows(feeds)):
                for row, drafter in judged.items():
                    drafter.drawn_from(host_rows(logits, [row]))


def _choose_gammas(drafting: Sequence[DraftModelDrafter], logits: Logits) -> None:
    """Let each policy choose, with the entropy of its first draft's distribution if it needs
    that."""
    nats = [0.0] * len(drafting)
    if any(drafter.policy.reads_entropy for drafter in drafting):
        nats = entropies(
            on_host(logits), [d.sequence.request.sampling.temperature for d in drafting]
        )
    for drafter, entropy in zip(drafting, nats, strict=True):
        drafter.choice = drafter.policy.choose(entropy)


def entropies(logits: ndarray, temperatures: Sequence[float]) -> list[float]:
    """Compute each row's entropy in nats at its temperature, unfiltered; temperature 0 counts as
    1."""
    heat = np.array([t or 1.0 for t in temperatures])
    probs = np.exp(log_softmax(logits.astype(np.float64) / heat[:, None]))
    sums = -(probs * np.log(probs + 1e-8)).sum(axis=-1)
    nats: list[float] = np.nan_to_num(sums).tolist()  # of broken logits, which draft nothing
    return nats


def _stretches(behind: Sequence[DraftModelDrafter], budget: int) -> Iterator[Feed]:
    for drafter in behind:
        length = min(drafter.missing, budget, MAX_CHUNK)
        if length <= 0:
            return
        budget -= length
        yield drafter.stretch(length)


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft model without a cache."""

    model: Model[Any]
    block_bytes: int
    """Bytes of a block of its cache."""
    device: Device
    vocab_size: int

    def need(self, limits: ExecutorLimits, usual_seq_len: int | None = None) -> CacheNeed:
        """Compute its cache for a target with these limits."""
        scratch = self.model.scratch_bytes(draft_limits(limits), STEP_SIZES)
        sizes = (self.block_bytes, limits.max_text_len, scratch)
        return CacheNeed(self.device, *sizes, usual_seq_len)

    def with_cache(
        self, num_blocks: int, limits: ExecutorLimits, totals: DraftTotals | None = None
    ) -> DraftModelDrafters:
        """Create its drafters with a cache; arguments as in `DraftModelDrafters`."""
        cache = self.model.new_cache(num_blocks + SPARE_BLOCKS)
        how = (limits.drafter, limits, totals, self.vocab_size)
        return DraftModelDrafters(self.model, cache, *how)


def check_draft_engines(engines: Iterable[Engine]) -> None:
    """Refuse engines that cannot draft, before anything is loaded.

    Raises:
        UsageError: an engine is TensorRT-LLM's.
    """
    for engine in engines:
        if engine.backend == "tensorrt-llm":
            raise trtllm_cannot(
                engine.name,
                "which cannot draft for another",
                "give the draft model's Hugging Face folder, or build it with --backend torch",
            )


def load_draft_model(
    engine: Engine,
    device: str = "auto",
    dtype: str = "auto",
) -> LoadedDraft:
    """Load a draft model's weights.

    Args:
        engine: one that `check_draft_engines` has accepted; its own limits do not count.
        device: auto, cpu, cuda or cuda:N; it may differ from the target's.
        dtype: auto (the engine's), float32, bfloat16 or float16.

    Raises:
        UsageError: the device or the type is not available.
    """
    engine, on = read_in(engine, dtype), resolve_device(device, "draft_device")
    checkpoint = engine.config.pretrained_config
    arithmetic = model_dtype(dtype, checkpoint, on)
    model = load_engine(engine, arithmetic, on)
    block = block_bytes(checkpoint, model.cache_type)
    return LoadedDraft(model, block, on, checkpoint.vocab_size)
