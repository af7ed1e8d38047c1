"""Toy draft models: what they draft, alone and beside a target."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from tests.support.toys import ToyModel, run, tokens_of, toy_executor
from trtla.runtime.draft import NoDrafter
from trtla.runtime.drafters.draft_model import DraftModelDrafter, DraftModelDrafters
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.settings.drafting import DrafterSettings
from trtla.settings.lookahead import LookaheadConfig

PLAIN = LookaheadConfig(1, 1, 0)
DRAFT = ("draft:toy",)
guided = st.builds(
    lambda least, more, ema: DrafterSettings(
        DRAFT, egag=True, gamma_min=least, gamma_max=max(1, least + more), ema=ema
    ),
    st.integers(0, 3),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.5, 0.9]),
)


@dataclass
class Decoded:
    """What a toy target with a toy draft model did."""

    group: DraftModelDrafters
    draft: ToyModel
    target: ToyModel
    drafters: dict[int, DraftModelDrafter] = field(default_factory=dict)
    outputs: dict = field(default_factory=dict)
    executor: object = None

    def text(self, request_id=0):
        return tokens_of(self.outputs[request_id])

    def stats(self, request_id=0):
        return self.outputs[request_id][-1].stats


class Watched(NoDrafter):
    """A drafter whose cache is looked at after every step (I9)."""

    def __init__(self, drafter):
        self.drafter, self.length = drafter, len(drafter.sequence.prompt)

    def propose(self):
        draft = self.drafter.propose()
        self.fed = max(len(draft.tokens), 1) if self.drafter.choice else 0
        self.proposed = draft.tokens
        return draft

    def observe(self, greedy, committed):
        length, drafter = self.length, self.drafter
        held = drafter.sequence.num_cached
        drafter.observe(greedy, committed)
        self.length += len(committed)
        if length > len(drafter.sequence.prompt):
            accepted = 0
            while accepted < len(committed) and self.proposed[accepted : accepted + 1] == (
                committed[accepted],
            ):
                accepted += 1
            if self.fed:
                assert held == length + self.fed - 1
                ended_by_draft = accepted == len(committed)
                kept = min(length + accepted - ended_by_draft, length + self.fed - 1)
                assert drafter.sequence.num_cached == kept
            assert drafter.missing in (0, 1) or not self.fed

    def close(self):
        self.drafter.close()


def prepared(draft_scores, vocab, chosen, *, batch=8, blocks=None, budget=4096):
    limits = ExecutorLimits(batch, 160, 160, budget, vocab, LookaheadConfig(1, 2, 8))
    cache = TensorCache(1, 1, 2, blocks or 6 * batch, torch.float64, torch.device("cpu"))
    draft = ToyModel(draft_scores)
    return DraftModelDrafters(draft, cache, chosen, limits), draft


def opened(target_scores, draft_scores, vocab, chosen, **options):
    group, draft = prepared(draft_scores, vocab, chosen, **options)
    drafters = {}

    def factory(_, request):
        drafters[request.request_id] = group.drafter(request)
        return Watched(drafters[request.request_id])

    executor, target = toy_executor(
        target_scores, vocab, LookaheadConfig(1, 2, 8), drafter=factory,
        max_batch_size=options.get("batch", 8),
    )  # fmt: skip
    return Decoded(group, draft, target, drafters, executor=executor)


def decode(target_scores, draft_scores, vocab, requests, chosen, **options):
    decoded = opened(target_scores, draft_scores, vocab, chosen, **options)
    decoded.outputs = run(decoded.executor, requests)
    return decoded


def alone(scores, vocab, asked):
    """Autoregressive decoding of one request."""
    executor, _ = toy_executor(scores, vocab, PLAIN)
    return tokens_of(run(executor, [asked])[asked.request_id])
