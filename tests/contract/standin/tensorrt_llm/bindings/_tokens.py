"""The next tokens of one sequence: lookahead steps that verify drafts, and sampling.

Lossless: a lookahead step gives what greedy decoding gives, one to N tokens at once. Its drafts are
n-grams of the sequence itself, a simpler source than that of lookaheadAlgorithm.cpp.
"""

from __future__ import annotations

import torch

from .._standin import StandinUndefinedBehaviour
from ._engine_model import EngineModel
from ._requests import SamplingConfig


def draft(tokens: list[int], ngram: int, guesses: int) -> list[list[int]]:
    """At most `guesses` different continuations, each of at most `ngram - 1` tokens."""
    found: list[list[int]] = []
    for i in range(len(tokens) - 2, -1, -1):
        guess = tokens[i + 1 : i + ngram]
        if tokens[i] == tokens[-1] and guess and guess not in found:
            found.append(guess)
        if len(found) >= guesses:
            break
    return found if guesses and ngram > 1 else []


def lookahead_step(
    model: EngineModel, tokens: list[int], ngram: int, guesses: int, end_id: int, min_len: int
) -> list[int]:
    """The accepted drafts and the token after them; the end token not before `min_len`."""
    drafts = draft(tokens, ngram, guesses) or [[]]
    longest = max(map(len, drafts))
    rows = [tokens + guess + [0] * (longest - len(guess)) for guess in drafts]
    logits = model.logits(rows)
    if 0 <= end_id < logits.shape[-1]:
        logits[:, : max(min_len - 1, 0), end_id] = -torch.inf
    best: list[int] = []
    for guess, row in zip(drafts, logits[:, len(tokens) - 1 :].argmax(-1).tolist(), strict=True):
        count = 0
        while count < len(guess) and guess[count] == row[count]:
            count += 1
        if count + 1 > len(best):
            best = row[: count + 1]
    return best


def sampled_step(
    model: EngineModel, tokens: list[int], config: SamplingConfig, end_id: int, min_len: int
) -> int:
    """One token: argmax for top_k 0 and top_p 0, which are the defaults, else drawn."""
    logits = model.logits([tokens])[0, -1].clone()
    if 0 <= end_id < len(logits) and len(tokens) < min_len:
        logits[end_id] = -torch.inf
    top_k, top_p = config.top_k or 0, config.top_p or 0.0
    if top_k == 1 or (top_k == 0 and top_p == 0.0):
        return int(logits.argmax())
    temperature = 1.0 if config.temperature is None else config.temperature
    if temperature == 0:
        raise StandinUndefinedBehaviour("sampling with temperature 0")
    ordered, ids = (logits / temperature).sort(descending=True)
    if top_k:
        ordered, ids = ordered[:top_k], ids[:top_k]
    chances = ordered.softmax(-1)
    if top_p:
        keep = chances.cumsum(-1) - chances < top_p
        chances = chances * keep
    generator = torch.Generator().manual_seed((config.seed or 0) % 2**62 * 31 + len(tokens))
    return int(ids[torch.multinomial(chances, 1, generator=generator)])
