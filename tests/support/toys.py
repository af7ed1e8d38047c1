"""Toy targets behind the real step loop: the next token is a function of the attended text.

A toy stores (token, position) as its "keys" in the real paged cache and reads them back through the
batch's slots and masks, so a wrong slot, mask or position changes or breaks the text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trtla.runtime.auto.steps import StepCosts
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.costs import CostTable
from trtla.runtime.draft import Drafter, NoDrafter
from trtla.runtime.drafters.factory import Drafters
from trtla.runtime.drafters.lookahead import LookaheadDrafter, LookaheadWindow
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.models.attention import AttentionGroup
from trtla.runtime.models.batch import Batch, BatchOutput
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.models.tensor_model import PackedModel
from trtla.runtime.request import DrafterFactory, Output, Request
from trtla.runtime.sequence import Sequence as Running
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

Rule = Callable[[list[int]], int]
MakeDrafter = Callable[[LookaheadConfig, Request], Drafter]
Scores = Callable[[list[int]], list[float]]


class ToyModel(PackedModel):
    """A target whose logits are `scores(visible text)`; it checks that the text is contiguous.

    Its states, if it has a tap, are tokens and positions.
    """

    group_size = 1
    dtype = torch.float64
    arithmetic = "exact"
    weight_bytes = None

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        self.fed: list[int] = []
        """Tokens per forward."""
        self.visible: list[list[list[int]]] = []
        """Per forward, the text each fed row saw (kept for the mask tests)."""

    def new_cache(self, num_blocks: int) -> TensorCache:
        return TensorCache(1, 1, 2, num_blocks, torch.float64, torch.device("cpu"))

    def forward_batch(self, batch: Batch, cache: TensorCache) -> BatchOutput:
        pairs = torch.stack((batch.tokens, batch.positions), dim=-1).double()
        cache.write(0, batch.slots, pairs[:, None], pairs[:, None])
        stored = cache.layer(0)[0][:, 0].tolist()
        texts = [_text(stored, slots) for group in batch.groups for slots in visible_slots(group)]
        self.fed.append(len(batch.tokens))
        self.visible.append(texts)
        logits = [self._scores(texts[row]) for row in batch.rows.tolist()]
        states = torch.stack((batch.tokens, batch.positions), dim=-1).float()[None]
        rows = torch.tensor(logits, dtype=torch.float64)
        return BatchOutput(rows, states if batch.taps else None)


def _text(stored: list[list[float]], slots: list[int]) -> list[int]:
    pairs = sorted((int(stored[slot][1]), int(stored[slot][0])) for slot in slots)
    assert [p for p, _ in pairs] == list(range(len(pairs))), f"positions seen: {pairs}"
    return [t for _, t in pairs]


def visible_slots(group: AttentionGroup) -> list[list[int]]:
    """For every row of a group the cache slots it attends to."""
    batch, count, length = group.shape
    keys = group.keys
    flat = list(range(keys.start, keys.stop)) if isinstance(keys, slice) else keys.tolist()
    if group.causal:
        return [flat[: row + 1] for row in range(count)]
    bias = group.bias
    if bias is None:
        bias = torch.zeros(batch, 1, count, length)
    rows = [
        [flat[b * length + i] for i, hidden in enumerate(row) if hidden == 0]
        for b, rows in enumerate(bias[:, 0].tolist())
        for row in rows
    ]
    return rows if group.unpad is None else [rows[i] for i in group.unpad.tolist()]


def greedy_scores(rule: Rule, vocab: int) -> Scores:
    """One-hot logits of a deterministic rule."""

    def scores(text: list[int]) -> list[float]:
        row = [0.0] * vocab
        row[rule(text)] = 8.0
        return row

    return scores


def hash_rule(vocab: int, period: int, salt: int = 0) -> Rule:
    """A token that depends on the whole text and its length, with enough repetition to be drafted.

    The last two tokens decide, but every token and the length modulo `period` are mixed in too.
    """

    def rule(text: list[int]) -> int:
        key = (salt, len(text) % period, tuple(text[-2:]), sum(text) % 2)
        return hashlib.sha256(repr(key).encode()).digest()[0] % vocab

    return rule


def hash_scores(vocab: int, salt: int = 0, spread: float = 3.0) -> Scores:
    """A peaked random distribution that depends on the last two tokens and the text's parity."""

    def scores(text: list[int]) -> list[float]:
        digest = hashlib.sha256(repr((salt, text[-2:], sum(text) % 2)).encode()).digest()
        return [spread * math.log1p(digest[i % 32]) / 4 for i in range(vocab)]

    return scores


def cyclic_window(config: LookaheadConfig, prompt: Sequence[int]) -> LookaheadWindow:
    """The window of the traces at their start: the prompt, repeated."""
    count = config.window_size + config.ngram_size - 3
    return LookaheadWindow(config, [prompt[i % len(prompt)] for i in range(count)])


def traced_drafter(
    config: LookaheadConfig, request: Request, pool_from_text: bool = True
) -> LookaheadDrafter | NoDrafter:
    """Lookahead as the exact traces have it: its reference, with their window seed."""
    if config.is_autoregressive:
        return NoDrafter()
    return LookaheadDrafter(
        config,
        request.input_ids,
        cyclic_window(config, request.input_ids),
        pool_from_text=pool_from_text,
        options=DraftOptions(reference=True),
    )


class Made(DrafterFactory):
    """Drafters that a function makes."""

    def __init__(self, make: MakeDrafter) -> None:
        self._make = make

    def __call__(self, lookahead: LookaheadConfig, request: Request) -> Drafter:
        return self._make(lookahead, request)


def toy_executor(
    scores: Scores,
    vocab: int,
    server: LookaheadConfig,
    *,
    drafter: MakeDrafter = traced_drafter,
    max_batch_size: int = 8,
    max_text_len: int = 160,
    max_num_tokens: int | None = None,
    num_blocks: int | None = None,
    costs: CostTable | None = None,
    draft_models: tuple[str, ...] = (),
    heads: tuple[str, ...] = (),
    max_reused_len: int = 0,
    options: DraftOptions | None = None,
    ahead: bool | None = None,
) -> tuple[TorchExecutor, ToyModel]:
    """A `TorchExecutor` over a toy; with `options`, its drafters are those of an engine."""
    per_sequence = -(-(max_text_len + server.max_draft_len) // TOKENS_PER_BLOCK)
    blocks = num_blocks or per_sequence * max_batch_size
    model = ToyModel(scores)
    model.taps = (0,) if heads else ()
    cache = model.new_cache(blocks)
    budget = max_num_tokens or max(4096, max_batch_size * server.max_decoding_tokens)
    lengths = (max_text_len, max_text_len, budget)
    named = {"draft_models": draft_models, "heads": heads}
    limits = ExecutorLimits(max_batch_size, *lengths, vocab, server, **named)
    drafters = drafter if isinstance(drafter, DrafterFactory) else Made(drafter)
    if options is not None:
        drafters = Drafters(limits, options, {})
    made = (model, cache, limits, drafters, StepCosts(costs) if costs else None, max_reused_len)
    opened = ExecutorOptions(draft_options=options)
    return TorchExecutor(*made, options=opened, ahead=ahead), model


def ruled(
    rule: Rule, vocab: int, triple: tuple[int, int, int] | LookaheadConfig, **options: Any
) -> tuple[TorchExecutor, ToyModel]:
    """A toy that says what a deterministic rule says."""
    server = triple if isinstance(triple, LookaheadConfig) else LookaheadConfig(*triple)
    return toy_executor(greedy_scores(rule, vocab), vocab, server, **options)


def run(executor: TorchExecutor, requests: Sequence[Request]) -> dict[int, list[Output]]:
    """Submit everything, poll to the end, outputs by request."""
    for request in requests:
        executor.submit(request)
    outputs: dict[int, list[Output]] = {r.request_id: [] for r in requests}
    while step := executor.poll():
        for output in step:
            outputs[output.request_id].append(output)
    return outputs


def tokens_of(outputs: Sequence[Output]) -> list[int]:
    """All tokens of a request."""
    return [token for output in outputs for token in output.new_tokens]


def plain(rule: Rule, prompt: Sequence[int], count: int) -> list[int]:
    """Autoregressive decoding, written down directly."""
    text = list(prompt)
    for _ in range(count):
        text.append(rule(text))
    return text[len(prompt) :]


def request(
    prompt: Sequence[int],
    max_output_len: int,
    lookahead: tuple[int, int, int] | None = None,
    request_id: int = 0,
    *,
    end_ids: Sequence[int] = (),
    adaptive: bool = False,
    drafter: DrafterSettings | None = None,
    **sampling: object,
) -> Request:
    """A request in one line."""
    params = SamplingParams(max_output_len=max_output_len, **sampling)  # type: ignore[arg-type]
    config = LookaheadConfig(*lookahead) if lookahead else None
    return Request(
        request_id,
        tuple(prompt),
        params,
        config,
        frozenset(end_ids),
        adaptive=adaptive,
        drafter=drafter,
    )


def sequence(prompt_len, index=0, triple=(2, 2, 1), max_output_len=10):
    return Running(
        request([1] * prompt_len, max_output_len, request_id=index),
        LookaheadConfig(*triple),
        NoDrafter(),
    )
