"""The torch executor: plan, draft, forward, verify, commit, for all requests in flight at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Tokens

import torch

from trtla.errors import TrtlaError, UsageError
from trtla.lookahead import LookaheadConfig
from trtla.runtime.adaptive import AdaptiveSteps
from trtla.runtime.batch import Feed
from trtla.runtime.beam import BeamSettings, Hypothesis, beam_search
from trtla.runtime.beam_cache import CachedBeams
from trtla.runtime.commit import committed_prefix
from trtla.runtime.cost_probe import measure_costs
from trtla.runtime.cost_table import CostPlan, CostTable
from trtla.runtime.device import synchronize
from trtla.runtime.draft import Drafter, RankingDrafter, close_drafter
from trtla.runtime.drafters.lookahead import NoDrafter, lookahead_drafter
from trtla.runtime.executor import ExecutorStats, FinishReason, Output, Request, RequestStats
from trtla.runtime.kv_cache import TOKENS_PER_BLOCK, KVCache
from trtla.runtime.lifecycle import OpenExecutor
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.log_probs import text_log_probs
from trtla.runtime.model import TargetModel
from trtla.runtime.prediction import Prediction, predict
from trtla.runtime.ranking import most_probable
from trtla.runtime.rejection import accept_by_rejection
from trtla.runtime.scheduler import Plan, Scheduler
from trtla.runtime.sequence import Sequence
from trtla.runtime.step_forward import FeedModel, StepForward, step_forward
from trtla.runtime.verify import Accepted, accept

DrafterFactory = Callable[[LookaheadConfig, Request], Drafter]
"""(the triple that holds for it, request) -> its drafter."""

CostSource = Callable[[StepForward, KVCache, ExecutorLimits], CostTable]
"""Measures what forwards cost, or remembers it; asked when the first adaptive request comes."""


_Move = tuple[Sequence, int, tuple[int, ...]]
"""A sequence, its cached tokens before the step, and the draft's nodes that were accepted."""


class TorchExecutor(OpenExecutor):
    """An `Executor` on PyTorch, CPU or CUDA.

    Args:
        model: the target.
        cache: its K/V cache; a sequence's whole need is reserved when it is admitted.
        limits: what requests must fit into.
        drafter: makes each request's drafter; lookahead decoding unless said otherwise.
        costs: what forwards cost, for adaptive requests; measured unless said otherwise.
        max_reused_len: longest text whose blocks are kept for those that begin like it; 0: none.

    Raises:
        TrtlaError: the cache cannot hold a single request of the largest size.
    """

    def __init__(
        self,
        model: TargetModel | FeedModel,
        cache: KVCache,
        limits: ExecutorLimits,
        drafter: DrafterFactory = lookahead_drafter,
        costs: CostSource = measure_costs,
        max_reused_len: int = 0,
    ) -> None:
        largest = limits.max_text_len + limits.drafter.max_draft_len(limits.lookahead)
        if cache.pool.num_blocks * TOKENS_PER_BLOCK < largest:
            raise TrtlaError(
                f"{cache.pool.num_blocks} cache blocks cannot hold a request of {largest} tokens",
                "rebuild with a smaller --max-seq-len",
            )
        super().__init__(limits)
        self._model, self._cache = model, cache
        self._description = f"torch on {cache.device}, {model.arithmetic}"
        self._forward = step_forward(model, cache, limits)
        self._by_row = model if isinstance(model, FeedModel) else None
        self._make_drafter = drafter
        self._adaptive = AdaptiveSteps(lambda: costs(self._forward, self._cache, limits))
        sizes = (limits.max_batch_size, limits.max_num_tokens)
        self._scheduler = Scheduler(*sizes, cache.pool, max_reused_len)
        self._active: set[int] = set()
        self._deadlines: dict[int, float] = {}
        self._ended: list[Output] = []
        self._stats = ExecutorStats(weight_bytes=model.weight_bytes)

    @property
    def description(self) -> str:
        """`torch`, the device and the arithmetic."""
        return self._description

    @property
    def is_leader(self) -> bool:
        """Always: one process runs the model."""
        return True

    def stats(self) -> ExecutorStats:
        """Counters since the executor was opened."""
        return self._stats

    def submit(self, request: Request) -> None:
        """Queue a request; raises `UsageError` when it does not fit or its id is in use."""
        self._check_new(request, self._active)
        lookahead, drafting = self._limits.triple_of(request), self._limits.drafter_of(request)
        sequence = Sequence(
            request,
            lookahead,
            NoDrafter(),
            stats=RequestStats(lookahead, drafting.name),
            drafting=drafting,
        )
        self._check_room(sequence)
        drafter = self._make_drafter(lookahead, request)
        sequence.drafter = request.watch(drafter, request) if request.watch else drafter
        if request.adaptive:
            self._adaptive.join(sequence)
        self._scheduler.add(sequence)
        self._active.add(request.request_id)
        if request.sampling.allotted_time_ms is not None:
            end = time.monotonic() + request.sampling.allotted_time_ms / 1000
            self._deadlines[request.request_id] = end

    def _check_room(self, sequence: Sequence) -> None:
        """The cache holds the largest text with the executor's own drafts; others may be larger."""
        capacity = self._cache.pool.num_blocks * TOKENS_PER_BLOCK
        if sequence.max_cached > capacity:
            raise UsageError(
                f"{sequence.request.label} needs cache for {sequence.max_cached} tokens with its "
                f"drafts, and there is room for {capacity}",
                "lower its --gamma or --max-output-len",
            )

    def beam_search(self, request: Request, settings: BeamSettings) -> list[Hypothesis]:
        """The best hypotheses of a request, beside those in flight; its sampling is not looked at.

        Raises:
            UsageError: the request does not fit.
            TrtlaError: the cache has no room for the beams.
        """
        self._check_new(request, self._active)
        length = request.sampling.max_output_len
        sizes = (settings.num_beams, length, self._limits.max_num_tokens)
        ids = (request.input_ids, *sizes, request.encoder_ids)
        with CachedBeams(self._forward, self._cache, *ids) as target:
            return beam_search(target, settings, length, request.end_ids)

    def measure_costs(self, plan: CostPlan) -> CostTable:
        """Time forwards of made-up sequences in free blocks, anew."""
        self._check_open()
        return measure_costs(self._forward, self._cache, self._limits, plan)

    def log_probs(self, request: Request, output_ids: Tokens[int]) -> list[float]:
        """How probable the target finds an output, beside the requests in flight.

        Raises:
            UsageError: prompt and output do not fit.
            TrtlaError: the cache has no room for them.
        """
        self._check_new(request, self._active)
        self._limits.check_ids(output_ids, request.label)
        ids = (request.input_ids, output_ids)
        sizes = (self._limits.max_num_tokens, request.encoder_ids)
        return text_log_probs(self._forward, self._cache, *ids, *sizes)

    def cancel(self, request_id: int) -> None:
        """End a request; its last output comes with the next `poll`. Unknown ids are ignored."""
        self._end(request_id, "cancelled")

    def _end(self, request_id: int, reason: FinishReason) -> None:
        sequence = self._scheduler.remove(request_id)
        if sequence is not None:
            self._forget(request_id)
            close_drafter(sequence.drafter)
            self._ended.append(Output(request_id, (), reason, sequence.stats))

    def _end_late_ones(self) -> None:
        now = time.monotonic()
        for request_id in [i for i, end in self._deadlines.items() if end <= now]:
            self._end(request_id, "timed_out")

    def _forget(self, request_id: int) -> None:
        self._active.discard(request_id)
        self._deadlines.pop(request_id, None)

    def poll(self, timeout: float | None = None) -> list[Output]:
        """Step until there is something to report; `timeout` is for executors that wait."""
        self._check_open()
        self._end_late_ones()
        outputs, self._ended = self._ended, []
        while not outputs and (plan := self._scheduler.next()):
            try:
                outputs = self._step(plan)
            except BaseException:  # an interrupt too: accepted drafts may not have moved yet
                plan.tear()
                raise
        return outputs

    def _step(self, plan: Plan) -> list[Output]:
        feeds = [Feed.prompt(c.sequence, c.length, c.is_last) for c in plan.chunks]
        started = time.perf_counter()
        drafts = self._adaptive.drafts(plan.generation, sum(feed.length for feed in feeds))
        feeds += map(Feed.step, plan.generation, drafts)
        predictions = self._predict(feeds)
        moves: list[_Move] = []
        outputs = []
        for feed, prediction in zip(feeds, predictions, strict=True):
            self._count_fed(feed.sequence, feed.length)
            if feed.rows:
                outputs.append(self._commit(feed, prediction, moves))
            else:
                feed.sequence.num_cached += feed.length
        self._move_accepted(moves)
        self._adaptive.record(time.perf_counter() - started)
        for feed in feeds:
            if feed.sequence.finish_reason is not None:
                self._scheduler.finish(feed.sequence)
                close_drafter(feed.sequence.drafter)
        return outputs

    def _predict(self, feeds: list[Feed]) -> list[Prediction]:
        """One forward over all feeds, and the target's choices at the rows they want."""
        started = time.perf_counter()
        logits = self._forward(feeds)
        predictions = predict(feeds, logits, self._by_row)
        synchronize(self._cache.device)
        self._stats.forward_s += time.perf_counter() - started
        self._stats.steps += 1
        self._stats.max_in_flight = max(self._stats.max_in_flight, self._scheduler.num_running)
        return predictions

    def _commit(self, feed: Feed, prediction: Prediction, moves: list[_Move]) -> Output:
        """Decide what joins the output; cache, drafter and counters see exactly that."""
        sequence = feed.sequence
        request = sequence.request
        accepted = _accept(feed, prediction)
        tokens, kept = accepted.tokens, accepted.nodes
        count, reason = committed_prefix(request, sequence.output_ids, tokens)
        if count < len(tokens):
            tokens, kept = tokens[:count], kept[: count - 1]
        self._count(feed, len(accepted.nodes[:count]), count)
        if feed.draft is None:
            sequence.num_cached += feed.length
        else:
            if kept and kept[-1] > len(kept):  # else they lie where they belong
                moves.append((sequence, sequence.num_cached, kept))
            sequence.num_cached += 1 + len(kept)
        sequence.output_ids += tokens
        sequence.finish_reason = reason
        if feed.tree.top and isinstance(sequence.drafter, RankingDrafter):
            nodes = (0, *accepted.nodes)[:count]
            sequence.drafter.ranked(most_probable(feed, nodes, prediction))
        self._adaptive.observe(sequence, _read(feed, prediction), tokens)
        if reason is not None:
            self._forget(request.request_id)
        margins: tuple[float, ...] = ()
        if prediction.margins:
            margins = tuple(prediction.margins[node] for node in (feed.rows[0], *kept))
        return Output(request.request_id, tokens, reason, sequence.stats, margins)

    def _count_fed(self, sequence: Sequence, tokens: int) -> None:
        for stats in (sequence.stats, self._stats):
            stats.fed = (stats.fed or 0) + tokens

    def _count(self, feed: Feed, accepted: int, committed: int) -> None:
        own, total, drafted = feed.sequence.stats, self._stats, 0
        own.step_lengths.append(committed)
        total.new_tokens += committed
        if feed.draft is None:
            request = feed.sequence.request
            total.prompt_tokens += len(request.given_ids)
            # A prompt that an encoder reads counts in place of the decoder's start token.
            self._count_fed(feed.sequence, len(request.given_ids) - len(request.input_ids))
            accepted = 0
        else:
            own.steps += 1
            drafted = len(feed.draft.candidates)
        for stats in (own, total):
            stats.drafted = (stats.drafted or 0) + drafted
            stats.accepted += accepted

    def _move_accepted(self, moves: list[_Move]) -> None:
        """Bring accepted drafts' keys and values right behind the input token's."""
        sources: list[int] = []
        targets: list[int] = []
        for sequence, base, nodes in moves:
            slots = self._cache.table(sequence.blocks).order
            sources += [slots[base + node] for node in nodes]
            targets += slots[base + 1 : base + 1 + len(nodes)]
        if sources:
            source, target = torch.tensor((sources, targets)).to(self._cache.device)
            self._cache.move(source, target)

    def _release(self) -> None:
        self._active.clear()
        del self._model, self._cache, self._forward, self._by_row, self._make_drafter


def _accept(feed: Feed, prediction: Prediction) -> Accepted:
    if feed.draft is None or not feed.draft.tokens:
        return Accepted((prediction.draws[feed.rows[0]],), ())
    if feed.draft.laws is not None:
        return accept_by_rejection(feed, prediction, feed.draft.laws)
    return accept(feed.draft, prediction.draws)


def _read(feed: Feed, prediction: Prediction) -> list[int]:
    """What the drafter wants to know of the target."""
    if feed.draft is None or not feed.draft.read:
        return []
    said = prediction.draws if feed.draft.drawn else prediction.greedy
    return [said[node] for node in feed.draft.read]
