"""Log probabilities under the target, at temperature 1 without filters: of texts and of new tokens.

A given text's prompt is prefilled; its output goes through steps with itself as the draft, so every
token is computed as in decoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy import ndarray

from trtla.errors import TrtlaError
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.models.forward import StepForward
from trtla.runtime.models.kv_cache import KVCache
from trtla.runtime.request import Request, TokenLogProb, no_answer
from trtla.runtime.sampling.draw import largest, log_softmax
from trtla.runtime.sampling.logits import Logits, on_host
from trtla.runtime.sequence import Feed
from trtla.runtime.sequence import Sequence as Text
from trtla.settings.lookahead import AUTOREGRESSIVE

_STRETCH = 32
"""Output tokens of one forward: each has logits of the whole vocabulary."""


def text_log_probs(
    forward: StepForward,
    cache: KVCache,
    request: Request,
    output_ids: Sequence[int],
    max_num_tokens: int,
) -> list[float]:
    """Compute the log probability of each output token after the prompt and those before it."""
    length = len(request.input_ids) + len(output_ids)
    blocks = cache.pool.allocate(length)
    if blocks is None:
        raise TrtlaError(
            f"the K/V cache has no room for a text of {length} tokens beside those in flight",
            "wait until a request has ended, or rebuild with a larger --max-batch-size",
        )
    request, label = replace(request, logprobs=0), request.label
    text = Text(request, AUTOREGRESSIVE, NoDrafter(), blocks=blocks)
    try:
        logits = prompt_logits(forward, text, max_num_tokens)
        log_probs = _of_targets(log_prob_rows(logits, label, [0]), output_ids[:1])
        stretch = min(_STRETCH, max_num_tokens)
        for start in range(0, len(output_ids) - 1, stretch):
            fed = tuple(output_ids[:-1][start : start + stretch])
            draft = Draft.chain(fed[1:])
            logits = forward([Feed(text, fed, draft.rows, draft)]).logits
            text.num_cached += len(fed)
            positions = range(start + 1, start + 1 + len(fed))
            rows = log_prob_rows(logits, label, positions)
            log_probs += _of_targets(rows, [output_ids[position] for position in positions])
        return log_probs
    finally:
        cache.pool.release(blocks)


def prompt_logits(forward: StepForward, text: Text, max_num_tokens: int) -> Logits:
    """Cache a prompt in chunks; return the logits [1, vocab] after its last token."""
    left, logits = len(text.prompt), np.empty(0)
    while left:
        length = min(left, max_num_tokens)
        logits = on_host(forward([Feed.prompt(text, length, length == left)]).logits)
        text.num_cached += length
        left -= length
    return logits


def log_prob_rows(logits: Logits, label: str, positions: Sequence[int]) -> ndarray:
    """Compute log probabilities of every token, float64 [rows, vocab]; -inf is valid for tokens.

    Args:
        logits: [rows, vocab].
        label: the text's name in errors.
        positions: of each row's token in the output, counted from 0.
    """
    rows = log_softmax(on_host(logits).astype(np.float64))
    broken: list[bool] = np.isnan(rows).any(axis=-1).tolist()  # any such logit makes its row NaN
    if True in broken:
        raise no_answer(label, positions[broken.index(True)])
    return rows


def _of_targets(rows: ndarray, tokens: Sequence[int]) -> list[float]:
    log_probs: list[float] = rows[range(len(tokens)), tokens].tolist()
    return log_probs


def token_log_probs(logits: ndarray, tokens: Sequence[int], count: int) -> tuple[TokenLogProb, ...]:
    """Compute each token's log probability, and the `count` most probable tokens in its place.

    Args:
        logits: [rows, vocab] without NaN or +inf; float32 is exact enough.
        tokens: one for each row.
    """
    logs = log_softmax(logits)
    tops = _most_probable(logits, logs, count)
    return tuple(map(TokenLogProb, tokens, _of_targets(logs, tokens), tops))


def _most_probable(
    logits: ndarray, logs: ndarray, count: int
) -> list[tuple[tuple[int, float], ...]]:
    """Return the most probable tokens of each row, ties in the order of ids."""
    if not count:
        return [()] * len(logits)
    least = largest(logits, count)[:, -1:]
    rows, ids = ((logits >= least) & (logs > -math.inf)).nonzero()
    columns = (rows, ids, logs[rows, ids], logits[rows, ids])
    entries = zip(*(column.tolist() for column in columns), strict=True)
    tops: list[list[tuple[int, float]]] = [[] for _ in logits]
    for row, token, log, _ in sorted(entries, key=lambda entry: -entry[3]):  # already by ids
        tops[row].append((token, log))
    return [tuple(top[:count]) for top in tops]


def perplexity(log_probs: Sequence[float]) -> float:
    """Return exp of the mean negative log probability of at least one token."""
    return math.exp(-sum(log_probs) / len(log_probs))
