"""One step of the torch executor: draft, forward, verify, commit, for all sequences of a plan."""

from __future__ import annotations

import time
from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy import ndarray

from trtla.runtime.device import Device
from trtla.runtime.draft import Draft
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.drafting import AdaptiveSteps
from trtla.runtime.loop.leader import Leader, rank_steps
from trtla.runtime.loop.scheduler import StepPlan
from trtla.runtime.loop.scores import token_log_probs
from trtla.runtime.models.forward import Forwarded, Model
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.ranks.opening import Ranks
from trtla.runtime.request import Output, TokenLogProb, committed_prefix
from trtla.runtime.sampling.accept import Path, accept, accept_by_rejection
from trtla.runtime.sampling.draw import top2_margin
from trtla.runtime.sampling.logits import on_host
from trtla.runtime.sampling.predict import (
    Prediction,
    logits_after,
    most_probable,
    predict,
    top_rows,
)
from trtla.runtime.sequence import Feed, RequestFailed, Sequence
from trtla.runtime.stats import DraftTotals, ExecutorStats

if TYPE_CHECKING:
    import torch


class ForwardClock:
    """Times a forward that begins now, and the choice of its tokens.

    A GPU may have finished the forward before the host comes back to choose tokens: then the time
    is taken from its own events.
    """

    def __init__(self, device: Device) -> None:
        self.started = time.perf_counter()
        self._stream = _cuda_stream(device) if device.type == "cuda" else None
        self._begin = self._end = None if self._stream is None else self._event()
        self._resumed: float | None = None
        """The time when the host resumed, if that was too late to time the forward itself."""

    def launched(self) -> None:
        if self._stream is not None:
            self._end = self._event()

    def resumed(self) -> None:
        if self._end is not None and self._end.query():  # type: ignore[no-untyped-call]
            self._resumed = time.perf_counter()

    def seconds(self) -> float:
        """Return the seconds of the forward and of the choice, which ends now."""
        now = time.perf_counter()
        if self._resumed is None or self._begin is None or self._end is None:
            return now - self.started
        return float(self._begin.elapsed_time(self._end)) / 1000.0 + now - self._resumed

    def _event(self) -> torch.cuda.Event | None:
        if self._stream is None:
            return None
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event


def _cuda_stream(device: Device) -> torch.cuda.Stream:
    import torch

    return torch.cuda.current_stream(str(device))


_Move = tuple[Sequence, int, tuple[int, ...]]
"""A sequence, its cached tokens before the step, and the draft's nodes that were accepted."""


class Step(NamedTuple):
    """A forward in flight, whose tokens are not chosen yet."""

    feeds: list[Feed]
    done: Forwarded
    """Logits of the rows that the feeds want, or other ranks' answers about them."""
    draft_s: float
    """Seconds spent on its drafts."""
    clock: ForwardClock


class Stepper:
    """Runs the model's steps and commits their tokens; arguments as in `TorchExecutor`."""

    def __init__(
        self,
        model: Model[Any],
        cache: KVCache,
        limits: ExecutorLimits,
        draft_totals: DraftTotals,
        ranks: Ranks | None = None,
    ) -> None:
        self.stats = ExecutorStats(
            weight_bytes=model.weight_bytes,
            weight_type=model.weight_type,
            compute_type=model.compute_type,
            draft_models=draft_totals,
        )
        """Counters; those of tokens are summed over requests on demand."""
        self.model, self._cache = model, cache
        forward = model.step_forward(cache, limits)
        self.leader = None
        if ranks is not None:
            self.leader = Leader(ranks, rank_steps(ranks, model, forward, cache), cache)
        self.forward = self.leader or forward

    def launch(self, plan: StepPlan, adaptive: AdaptiveSteps) -> Step:
        """Draft for a plan and begin its forward, which a GPU runs on its own."""
        started = time.perf_counter()
        drafts = adaptive.drafts(plan.generation, plan.prompt_tokens, plan.room)
        feeds = [*plan.prompts, *map(Feed.step, plan.generation, drafts)]
        clock = ForwardClock(self._cache.device)
        done = self.forward(feeds)
        clock.launched()
        for feed in feeds:
            self._count_fed(feed)
        return Step(feeds, done, clock.started - started, clock)

    def complete(self, step: Step, new: list[Output]) -> float:
        """Commit a forward's tokens to sequences that have not ended since; return the seconds.

        Args:
            new: gets each output as it is committed.

        Raises:
            RequestFailed: a request's own drafter or stop check raised.
        """
        predictions = self._predict(step)
        forward_s, predicted = step.clock.seconds(), time.perf_counter()
        self.stats.forward_s = (self.stats.forward_s or 0.0) + forward_s
        self.stats.steps += 1
        moves: list[_Move] = []
        start, tapped = 0, step.done.hidden
        hidden = None if tapped is None else on_host(tapped)
        for feed, prediction in zip(step.feeds, predictions, strict=True):
            length = len(feed.tokens)
            fed = None if hidden is None else hidden[:, start : start + length]
            start += length
            if feed.sequence.finish_reason is not None:
                continue
            try:
                if feed.rows:
                    self._commit(feed, prediction, moves, new, fed)
                else:
                    _show_states(feed, fed)
                    feed.sequence.num_cached += length
            except RequestFailed:
                raise
            except Exception as error:
                raise RequestFailed(feed.sequence) from error
        self._move_accepted(moves)
        return step.draft_s + forward_s + time.perf_counter() - predicted

    def _predict(self, step: Step) -> list[Prediction]:
        step.clock.resumed()
        logits, sampler = step.done.logits, step.done.sampler or self.model.row_sampler
        tops = top_rows(step.feeds, logits, sampler)
        predictions = predict(step.feeds, logits, sampler, tops)
        self._cache.synchronize()
        return predictions

    def _commit(
        self,
        feed: Feed,
        prediction: Prediction,
        moves: list[_Move],
        new: list[Output],
        hidden: ndarray | None,
    ) -> None:
        """Decide which tokens join the output; cache, drafter and counters see exactly those."""
        sequence = feed.sequence
        tokens, accepted = _accept(feed, prediction)
        kept = accepted
        request, start = sequence.request, len(sequence.output_ids)
        count, reason = committed_prefix(request, sequence.output_ids, tokens)
        if count < len(tokens):
            tokens, kept = tokens[:count], kept[: count - 1]
        margins: tuple[float, ...] = ()
        logprobs: tuple[TokenLogProb, ...] = ()
        if request.margins or request.logprobs is not None:
            margins, logprobs = _reported(feed, (feed.rows[0], *kept)[:count], prediction, tokens)
        stats = sequence.stats
        output = Output(
            request.request_id,
            tokens,
            reason,
            stats,
            margins,
            sequence.no_answer(tokens) if reason == "failed" else None,
            start=start,
            accepted=len(accepted[:count]),
            sources=feed.tree.proposers(accepted[:count]) if accepted else (),
            logprobs=logprobs,
        )
        sequence.outputs.append(output)  # from here on the step is committed for this sequence
        new.append(output)
        sequence.output_ids += tokens
        stats.step_lengths.append(len(tokens))
        stats.steps += feed.draft is not None
        stats.accepted += output.accepted
        _show_states(feed, hidden, kept)
        if feed.draft is None:
            sequence.num_cached += len(feed.tokens)
        else:
            if kept and kept[-1] > len(kept):  # else they are in place already
                moves.append((sequence, sequence.num_cached, kept))
            sequence.num_cached += 1 + len(kept)
        if sequence.drafter.ranks and feed.draft is not None:
            nodes = (0, *accepted)[:count]
            sequence.drafter.ranked(most_probable(feed, nodes, prediction))
        if prediction.tops is not None:
            nodes = accepted[:count]
            sequence.drafter.saw(nodes, prediction.tops.after(nodes))
        read = () if feed.draft is None or not feed.draft.read else _read(feed.draft, prediction)
        sequence.observe(read, tokens)

    def _count_fed(self, feed: Feed) -> None:
        """Count the tokens fed to a forward, even if it is never committed."""
        fed, drafted = len(feed.tokens), 0
        if feed.draft is not None:
            drafted = feed.draft.num_candidates
        elif feed.rows:  # A prompt that an encoder reads counts in place of the start token.
            request = feed.sequence.request
            fed += len(request.given_ids) - len(request.input_ids)
        for stats in (feed.sequence.stats, self.stats):
            stats.fed = (stats.fed or 0) + fed
            stats.drafted = (stats.drafted or 0) + drafted

    def _move_accepted(self, moves: list[_Move]) -> None:
        for sequence, base, nodes in moves:
            order = self._cache.table(sequence.blocks).order
            sources = (order[base + node] for node in nodes)
            self._cache.move_later(zip(sources, order[base + 1 :], strict=False))


def _show_states(feed: Feed, hidden: ndarray | None, kept: tuple[int, ...] = ()) -> None:
    """Show a drafter that wants them the states of a prompt, or of the input and the draft's kept
    nodes; called before these count as cached."""
    if hidden is not None and feed.wants_states:
        places = slice(None) if feed.draft is None else (0, *kept)
        feed.sequence.drafter.saw_hidden(feed.sequence.num_cached, hidden[:, places])


def _reported(
    feed: Feed, nodes: Tokens[int], prediction: Prediction, tokens: Tokens[int]
) -> tuple[tuple[float, ...], tuple[TokenLogProb, ...]]:
    """Return margins and log probabilities of committed tokens, each chosen after a node."""
    request = feed.sequence.request
    if not tokens:
        return (), ()
    logits = logits_after(feed, nodes, prediction)
    margins = tuple(top2_margin(logits)) if request.margins else ()
    if request.logprobs is None:
        return margins, ()
    return margins, token_log_probs(logits, tokens, request.logprobs)


def _accept(feed: Feed, prediction: Prediction) -> Path:
    if feed.draft is None or not feed.draft.tokens:
        return (prediction.draws[feed.rows[0]],), ()
    if feed.draft.draft_probs is not None:
        return accept_by_rejection(feed, prediction, feed.draft.draft_probs)
    return accept(feed.draft, prediction.draws)


def _read(draft: Draft, prediction: Prediction) -> list[int]:
    tokens = prediction.draws if draft.drawn else prediction.greedy
    return [max(0, tokens[node]) for node in draft.read]  # NO_TOKEN is never drafted
