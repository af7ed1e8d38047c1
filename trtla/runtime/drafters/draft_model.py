"""Draft models: a second, smaller model guesses the target's next tokens.

It has its own K/V cache, and its lengths follow the target's text: whatever of a draft did not
become output is forgotten. All sequences of a step are drafted for in the same forwards. Every
token is drawn as the target draws, with the same noise, so that two equal models always agree.
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
from trtla.runtime.models.load import load_engine, model_dtype
from trtla.runtime.request import NO_TOKEN, Request
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
"""What a sequence feeds a forward: after full acceptance the cache is one short. What catches up
with a text is read like a prompt."""


def draft_limits(limits: ExecutorLimits) -> ExecutorLimits:
    """What a draft model's forwards must fit into, from the limits of the target's executor.

    It feeds all sequences at once, also where a step of the target has no room for two tokens each.
    """
    most = max(limits.max_num_tokens, STEP_SIZES[-1] * limits.max_batch_size)
    return replace(limits, lookahead=AUTOREGRESSIVE, max_num_tokens=most)


class GammaPolicy:
    """How many tokens are drafted for one request, chosen once a step: gamma, or EGAG.

    EGAG, adaptive gamma guided by entropy, is the rule of "Speculative-Decoding" (FK fork):
    floor((1 - H / ln V) * gamma_max) within its bounds, then a moving average.
    """

    def __init__(self, settings: DrafterSettings, vocab_size: int) -> None:
        self.reads_entropy = settings.egag
        """Whether `choose` wants the entropy of the first draft's distribution."""
        self._settings, self._most_entropy = settings, math.log(vocab_size)
        self._average: float | None = None

    def choose(self, entropy: float = 0.0) -> GammaChoice:
        """Gamma of the next step; the entropy is in nats."""
        own, most = self._settings, self._settings.largest_gamma
        if not own.egag:
            return GammaChoice(own.gamma, own.gamma)
        relative = entropy / self._most_entropy
        raw = min(max(math.floor((1 - relative) * most), own.gamma_min), most)
        past = raw if self._average is None else self._average
        self._average = past if raw == past else own.ema * past + (1 - own.ema) * raw
        return GammaChoice(round(self._average), raw, relative)


class DraftModelDrafter(Drafter):
    """The drafter of one request, made by `DraftModelDrafters`.

    Invariant before a draft: the cache holds all of the text but its last one or two tokens, or
    less where no draft was made before.
    """

    def __init__(
        self, group: DraftModelDrafters, request: Request, settings: DrafterSettings, vocab: int
    ) -> None:
        self.sequence = Sequence_(request, AUTOREGRESSIVE, NoDrafter())
        self.policy = GammaPolicy(settings, vocab)
        self._rejection = settings.rejection and not request.sampling.greedy
        self.steps: list[DraftStep] = []
        """The steps that were drafted for."""
        self.drafted: list[int] = []
        self.draft_probs: list[ndarray] = []
        """What each of them was drawn from, where they are verified by rejection sampling."""
        self.choice: GammaChoice | None = None
        """The policy's, for this step; None: not yet."""
        self._group = group
        self._text = group.known(request.input_ids)
        self._end = len(self._text) + request.sampling.max_output_len

    @property
    def room(self) -> int:
        """Tokens that can be accepted before the output's last one, which is the target's."""
        return self._end - len(self._text) - 1

    @property
    def gamma(self) -> int:
        return min(self.choice.gamma, self.room) if self.choice else 0

    @property
    def missing(self) -> int:
        """Tokens before the last one whose keys and values are not in the cache."""
        return len(self._text) - 1 - self.sequence.num_cached

    def propose(self) -> Draft:
        """A chain of at most gamma tokens; the first one drafts for all in the batch."""
        if self in self._group.due:
            self._group.draft()
        draft_probs = np.stack(self.draft_probs) if self.draft_probs else None
        return replace(Draft.chain(self.drafted), draft_probs=draft_probs)

    def skip(self) -> None:
        """Be left out of the drafts of this step, and catch up with the text in a later one."""
        self._group.due.pop(self, None)

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        accepted = alike(self.drafted, committed)
        kept = min(len(self._text) + accepted, self.sequence.num_cached)
        if self.choice is not None:
            step = DraftStep(self.choice, len(self.drafted), accepted)
            self.steps.append(step)
            self._group.totals.add(step)
        self._text += self._group.known(committed)
        self.sequence.num_cached = min(kept, len(self._text) - 1)
        self.drafted, self.draft_probs, self.choice = [], [], None
        self._group.due[self] = None

    def stretch(self, length: int) -> Feed:
        start = self.sequence.num_cached
        return Feed(self.sequence, tuple(self._text[start : start + length]), ())

    def feed(self) -> Feed:
        """What is not cached of text and draft, one token or two, and the last one's logits."""
        if self.drafted:
            return Feed(self.sequence, (self.drafted[-1],), (0,), NO_DRAFT)
        tokens = tuple(self._text[self.sequence.num_cached :])
        draft = Draft(tokens[1:], (0,)) if len(tokens) > 1 else NO_DRAFT
        return Feed(self.sequence, tokens, (len(tokens) - 1,), draft)

    def take(self, token: int, logits: ndarray) -> None:
        """Draft a token that was drawn from logits [1, vocab]; NO_TOKEN ends the draft."""
        if token == NO_TOKEN:
            self.choice = None
            return
        self.drafted.append(token)
        if self._rejection:
            self.draft_probs.append(probabilities(logits, self.sequence.request.sampling)[0])

    def close(self) -> None:
        self._group.forget(self)


class DraftModelDrafters:
    """Makes the drafters of an executor's requests and drafts for all that are due at once.

    Args:
        model: the draft model.
        cache: its own K/V cache; a request that finds no place in it is not drafted for.
        settings: fixed gamma or EGAG, for requests that say nothing else.
        limits: those of the target's executor.
        totals: where its steps are counted; its own unless given.
        vocab_size: rows of its embedding; None: as many as the target's has.
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
        """Those whose text has grown since their last draft, in order."""

    def drafter(
        self, request: Request, settings: DrafterSettings | None = None
    ) -> DraftModelDrafter:
        """The drafter of a request, which may bring its own gamma or EGAG."""
        own = settings or self._settings
        return DraftModelDrafter(self, request, own, self._limits.vocab_size)

    def known(self, ids: Sequence[int]) -> list[int]:
        """Ids as this model reads them: those of padding that it has not are its last one."""
        return [min(token, self._vocab_size - 1) for token in ids]

    def forget(self, drafter: DraftModelDrafter) -> None:
        """Release a drafter's blocks; it is never drafted for again."""
        self.due.pop(drafter, None)
        self.cache.pool.release(drafter.sequence.blocks)
        drafter.sequence.blocks = ()

    def reset(self) -> None:
        """Take the whole cache back: no drafter that was made before is used again."""
        self.due = {}
        self.cache.pool.reset()

    def draft(self) -> None:
        """Draft for every request whose text has grown: all of them take part in this step."""
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
        """Cache what is missing of prompts, and of texts that grew without a draft."""
        while behind := [drafter for drafter in drafting if drafter.missing > 1]:
            feeds = list(_stretches(behind, self._limits.max_num_tokens))
            self._forward(feeds)
            for feed in feeds:
                feed.sequence.num_cached += feed.length

    def _take(
        self, drafting: Sequence[DraftModelDrafter], feeds: Sequence[Feed], logits: Logits
    ) -> None:
        predictions = predict(feeds, logits, self._row_sampler)
        for drafter, feed, prediction in zip(drafting, feeds, predictions, strict=True):
            if drafter.gamma:
                row = host_rows(logits, [prediction.start])
                drafter.take(prediction.draws[feed.rows[0]], row)
            feed.sequence.num_cached += feed.length


def _choose_gammas(drafting: Sequence[DraftModelDrafter], logits: Logits) -> None:
    """Ask each policy, with the entropy of its first draft's distribution where it wants it."""
    nats = [0.0] * len(drafting)
    if any(drafter.policy.reads_entropy for drafter in drafting):
        nats = entropies(
            on_host(logits), [d.sequence.request.sampling.temperature for d in drafting]
        )
    for drafter, own in zip(drafting, nats, strict=True):
        drafter.choice = drafter.policy.choose(own)


def entropies(logits: ndarray, temperatures: Sequence[float]) -> list[float]:
    """Entropy in nats of each row at its temperature, without top-k and top-p; 0 counts as 1."""
    heat = np.array([t or 1.0 for t in temperatures])
    probs = np.exp(log_softmax(logits.astype(np.float64) / heat[:, None]))
    found = -(probs * np.log(probs + 1e-8)).sum(axis=-1)
    nats: list[float] = np.nan_to_num(found).tolist()  # of broken logits, which draft nothing
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
        """What it needs to draft for a target with these limits."""
        scratch = self.model.scratch_bytes(draft_limits(limits), STEP_SIZES)
        sizes = (self.block_bytes, limits.max_text_len, scratch)
        return CacheNeed(self.device, *sizes, usual_seq_len)

    def with_cache(
        self, num_blocks: int, limits: ExecutorLimits, totals: DraftTotals | None = None
    ) -> DraftModelDrafters:
        """What makes drafters, with a cache of its own; arguments as of `DraftModelDrafters`."""
        cache = self.model.new_cache(num_blocks + SPARE_BLOCKS)
        how = (limits.drafter, limits, totals, self.vocab_size)
        return DraftModelDrafters(self.model, cache, *how)


def check_draft_engines(engines: Iterable[Engine]) -> None:
    """Refuse what cannot draft, before anything is loaded.

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
        engine: one that `check_draft_engines` has let pass; its own limits do not count.
        device: auto, cpu, cuda or cuda:N; it may be another than the target's.
        dtype: auto (the engine's), float32, bfloat16 or float16.

    Raises:
        UsageError: the device or the type is not there.
    """
    checkpoint, on = engine.config.pretrained_config, resolve_device(device, "--draft-device")
    arithmetic = model_dtype(dtype, checkpoint, on)
    model = load_engine(engine, arithmetic, on)
    block = block_bytes(checkpoint, model.cache_type)
    return LoadedDraft(model, block, on, checkpoint.vocab_size)
