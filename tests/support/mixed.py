"""Toy batches whose requests draft in all ways there are."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from tests.support.toy_heads import ToyHead
from tests.support.toys import ToyModel, hash_scores, request, tokens_of, toy_executor
from trtla.runtime.draft import NoDrafter
from trtla.runtime.drafters.draft_model import DraftModelDrafters
from trtla.runtime.drafters.eagle import EagleDrafters
from trtla.runtime.drafters.factory import Drafters
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.plain_loop import decode
from trtla.runtime.sequence import Sequence
from trtla.settings.drafting import NO_DRAFTER, DrafterSettings, DraftOptions
from trtla.settings.lookahead import AUTOREGRESSIVE

VOCAB = 6
DEFAULT = DraftOptions()
NAMES = ("lookahead", "ngram", "prompt-lookup", "draft:toy", "head:toy")


@st.composite
def chains(draw: st.DrawFn) -> tuple[str, ...]:
    """none, one drafter, or several in any order."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    return tuple(names) or ("none",)


@st.composite
def drafters(draw: st.DrawFn) -> DrafterSettings:
    """Any drafter with any of its choices."""
    least = draw(st.integers(0, 3))
    return DrafterSettings(
        draw(chains()),
        draw(st.integers(1, 8)),
        draw(st.booleans()),
        least,
        draw(st.integers(max(least, 1), 6)),
        draw(st.sampled_from([0.0, 0.5, 0.9])),
        draw(st.sampled_from(["basic", "onelevel"])),
        draw(st.integers(2, 4)),
        draw(st.integers(1, 4)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


@st.composite
def triples(draw: st.DrawFn) -> tuple[int, int, int]:
    """A request's triple below (4,4,3), or plain."""
    size = draw(st.integers(1, 4))
    return (draw(st.integers(1, 4)), size, draw(st.integers(0, 3))) if size > 1 else (1, 1, 0)


@st.composite
def requests(draw: st.DrawFn, index: int):
    """A request with a drafter, a triple and sampling of its own."""
    return request(
        draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)),
        draw(st.integers(1, 24)),
        draw(triples()),
        index,
        end_ids=draw(st.sets(st.integers(0, VOCAB - 1), max_size=1)),
        adaptive=draw(st.booleans()),
        drafter=draw(drafters()),
        temperature=draw(st.sampled_from([0.0, 0.7, 1.5])),
        top_k=draw(st.sampled_from([0, 1, 3])),
        top_p=draw(st.sampled_from([1.0, 0.8])),
        seed=draw(st.integers(0, 3)),
    )


batches = st.integers(1, 6).flatmap(lambda count: st.tuples(*map(requests, range(count))))


def mixed_executor(
    server,
    *,
    draft_salt=0,
    batch=4,
    budget=48,
    options=DEFAULT,
    scores=None,
    max_reused_len=0,
    ahead=None,
):
    """An executor over a toy that makes every kind of drafter; draft model and head are toys too.

    With `scores` all are that toy.
    """
    limits = ExecutorLimits(batch, 160, 160, budget, VOCAB, server)
    cache = TensorCache(1, 1, 2, 6 * batch, torch.float64, torch.device("cpu"))
    model = ToyModel(scores or hash_scores(VOCAB, draft_salt))
    group = DraftModelDrafters(model, cache, DrafterSettings(("draft:toy",)), limits)
    head = ToyHead(scores or hash_scores(VOCAB, draft_salt))
    heads = EagleDrafters(head, head.new_cache(24 * batch), (0,))
    factory = Drafters(limits, options, {"toy": group}, {"toy": heads})
    executor, target = toy_executor(
        scores or hash_scores(VOCAB), VOCAB, server, drafter=factory, max_batch_size=batch,
        max_num_tokens=budget, draft_models=("toy",), heads=("toy",),
        max_reused_len=max_reused_len, ahead=ahead,
    )  # fmt: skip
    return executor, target, group


def plain_texts(asked):
    """Each request decoded alone by the plain loop, without drafts."""
    texts = {}
    for one in asked:
        sequence = Sequence(one, AUTOREGRESSIVE, NoDrafter(), drafting=NO_DRAFTER)
        steps, _ = decode(ToyModel(hash_scores(VOCAB)), sequence)
        texts[one.request_id] = [token for step in steps for token in step]
    return texts


def check_counters(asked, stats, outputs) -> None:
    """I6 and I7; a text that ended inside a draft has no token of the target's after it."""
    new, most = len(tokens_of(outputs)), asked.drafter.max_draft_len(asked.lookahead)
    assert new <= asked.sampling.max_output_len
    assert 0 <= stats.accepted <= stats.drafted <= most * stats.steps
    assert new - 1 - stats.steps <= stats.accepted <= new - stats.steps
    assert len(stats.step_lengths) == 1 + stats.steps
    if asked.drafter.drafter == ("none",):
        assert (stats.drafted, stats.steps) == (0, new - 1)
