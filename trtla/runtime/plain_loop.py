"""Speculative decoding of one text, as one loop: draft, forward, verify, accept, rewind.

`TorchExecutor` does the same for many texts at a time, in blocks that texts share, and streams the
tokens. This is the page to read first, and what tests compare the executor with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.draft import Draft
from trtla.runtime.models.forward import SPARE_BLOCKS, Forwarded, Model
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.request import FinishReason, committed_prefix
from trtla.runtime.sampling.accept import Path, accept_by_rejection
from trtla.runtime.sampling.logits import on_host
from trtla.runtime.sampling.predict import Prediction, most_probable, predict, top_rows
from trtla.runtime.sequence import Feed, Sequence

Steps = list[tuple[int, ...]]
"""The tokens that each forward added to the text, the prefill first."""


def decode(
    model: Model[Any],
    sequence: Sequence,
    draft: Callable[[Sequence], Draft] = Sequence.propose,
) -> tuple[Steps, FinishReason]:
    """Decode a new sequence to its end.

    Every forward computes the target's choice after each token that it is fed. Without a draft that
    is the last token, and one token is gained. A draft is a tree of guesses of what follows: those
    on a path that the target would have chosen itself are gained as well, whoever guessed them. So
    the drafter changes the number of steps, never the text.

    Args:
        draft: what is fed next to the last token; by default the proposal of the drafter alone.
    """
    cache = model.new_cache(-(-sequence.max_cached // TOKENS_PER_BLOCK) + SPARE_BLOCKS)
    sequence.blocks = cache.pool.allocate(sequence.max_cached) or ()
    feed = Feed.prompt(sequence, len(sequence.prompt), is_last=True)
    steps: Steps = []
    while True:
        forwarded = model.forward([feed], cache)
        prediction = _predict(model, feed, forwarded)
        tokens, path = _verify(feed, prediction)
        count, reason = committed_prefix(sequence.request, sequence.output_ids, tokens)
        tokens, path = tokens[:count], path[:count]
        kept = path[: max(0, count - 1)]
        _show_states(feed, forwarded, kept)
        _rewind(feed, kept, cache)
        _learn(feed, prediction, tokens, path)
        sequence.output_ids += tokens
        steps.append(tokens)
        if reason is not None:
            return steps, reason
        feed = Feed.step(sequence, draft(sequence))


def _predict(model: Model[Any], feed: Feed, forwarded: Forwarded) -> Prediction:
    """Return the target's choice after each fed token, and its most probable ones if asked for."""
    sampler = model.row_sampler
    tops = top_rows([feed], forwarded.logits, sampler)
    return predict([feed], forwarded.logits, sampler, tops)[0]


def _verify(feed: Feed, prediction: Prediction) -> Path:
    """Return the tokens that the target gives, and the draft's nodes that guessed them.

    Drafts of a model that samples are kept with the probability by which the target would draw them
    (Rule B); all others are compared with the target's own choices (Rule A).
    """
    draft = feed.tree
    if draft.draft_probs is not None and draft.tokens:
        return accept_by_rejection(feed, prediction, draft.draft_probs)
    path: list[int] = []
    tokens = [prediction.draws[feed.rows[0]]]
    while node := _child(draft, path[-1] if path else 0, tokens[-1]):
        path.append(node)
        tokens.append(prediction.draws[node])
    return tuple(tokens), tuple(path)


def _child(draft: Draft, parent: int, token: int) -> int:
    """Return the candidate that continues a node with a token; 0: there is none."""
    for node in draft.candidates:
        if draft.parents[node - 1] == parent and draft.tokens[node - 1] == token:
            return node
    return 0


def _rewind(feed: Feed, path: tuple[int, ...], cache: KVCache) -> None:
    """Rewind the cache to the text: the nodes of a path move up, later ones are overwritten."""
    sequence, start = feed.sequence, feed.sequence.num_cached
    if feed.draft is None:
        sequence.num_cached += len(feed.tokens)
        return
    slots = cache.table(sequence.blocks).order
    cache.move_later((slots[start + node], slots[start + 1 + i]) for i, node in enumerate(path))
    cache.move_now()
    sequence.num_cached += 1 + len(path)


def _show_states(feed: Feed, forwarded: Forwarded, path: tuple[int, ...]) -> None:
    """Show a drafter that wants them the states of a prompt, or of the input and a draft's path."""
    if forwarded.hidden is not None and feed.wants_states:
        hidden = on_host(forwarded.hidden)
        places = slice(None) if feed.draft is None else (0, *path)
        feed.sequence.drafter.saw_hidden(feed.sequence.num_cached, hidden[:, places])


def _learn(
    feed: Feed, prediction: Prediction, tokens: tuple[int, ...], path: tuple[int, ...]
) -> None:
    """Show the drafter what the target chose, and of rows what it reads."""
    drafter, draft = feed.sequence.drafter, feed.draft
    if drafter.ranks and draft is not None:
        drafter.ranked(most_probable(feed, (0, *path)[: len(tokens)], prediction))
    if prediction.tops is not None:
        drafter.saw(path, prediction.tops.after(path))
    chosen = prediction.draws if feed.tree.drawn else prediction.greedy
    feed.sequence.observe([max(0, chosen[node]) for node in feed.tree.read], tokens)
