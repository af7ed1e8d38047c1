"""Random steps over a shuffled cache, and paged attention written down directly."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import strategies as st

from tests.support.models import Variant, make_model, save_model
from trtla.build.convert import convert
from trtla.formats.checkpoint import Checkpoint
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.models.cuda import paged_attention
from trtla.runtime.models.cuda.inputs import Room
from trtla.runtime.models.cuda.paged_attention import HEADER
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.request import Request
from trtla.runtime.sequence import Feed, Sequence
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.settings.sampling import SamplingParams

NUM_BLOCKS = 40
CPU = torch.device("cpu")


def compiled_in_a_process(code, cache, *arguments):
    """Run code that compiles Triton kernels, which this process only interprets."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def tree_feed(sequence, parents, token=0):
    """A step's feed with a tree of these parents, all of its logits wanted."""
    draft = Draft(tuple((token + i) % 97 for i in range(len(parents))), tuple(parents))
    return Feed.step(sequence, draft)


def sequence_of(cached, fed, blocks, prompt=(), outputs=(5,)):
    """A sequence with so many cached tokens; it takes its blocks from `blocks`."""
    request = Request(0, tuple(prompt) or (3,) * max(1, cached), SamplingParams(max_output_len=1))
    count = -(-(cached + fed) // TOKENS_PER_BLOCK)
    own = tuple(blocks.pop() for _ in range(count))
    return Sequence(request, AUTOREGRESSIVE, NoDrafter(), list(outputs), cached, own)


@st.composite
def trees(draw, longest=90):
    """Parents of a random tree: chains, stars and all between."""
    size = draw(st.integers(0, longest - 1))
    rng = draw(st.randoms(use_true_random=False))
    reach = draw(st.sampled_from((1, 3, size + 1)))
    return tuple(rng.randint(max(0, node - reach), node) for node in range(size))


@st.composite
def steps(draw, prompts=2, generating=3, most_cached=140, longest=90):
    """Feeds of a step, prompts first, in blocks that lie anywhere in the cache."""
    blocks = draw(st.permutations(range(NUM_BLOCKS)))
    feeds = []
    for _ in range(draw(st.integers(0, prompts))):
        cached, length = draw(st.integers(0, 40)), draw(st.integers(1, min(70, longest)))
        prompt = tuple((7 * i + length) % 101 for i in range(cached + length))
        sequence = sequence_of(cached, length, blocks, prompt, outputs=())
        feeds.append(Feed.prompt(sequence, length, draw(st.booleans())))
    for _ in range(draw(st.integers(0 if feeds else 1, generating))):
        cached, parents = draw(st.integers(1, most_cached)), draw(trees(longest))
        sequence = sequence_of(cached, len(parents) + 1, blocks)
        feeds.append(tree_feed(sequence, parents, cached))
    return feeds


def empty_cache(kv_heads=2, size=16, dtype=torch.float32, layers=1, device=CPU):
    """A cache of random keys and values."""
    cache = TensorCache(layers, kv_heads, size, NUM_BLOCKS, dtype, device)
    cache.data.copy_(torch.randn(cache.data.shape, generator=torch.Generator().manual_seed(0)))
    return cache


def visible(group, row, sequence):
    """The cache slots that a row of a paged group attends to, read from its integers."""
    cached, _, start = group.sequences[sequence, :HEADER].tolist()
    blocks = group.sequences[sequence, HEADER:].tolist()
    node = row - start
    seen = list(range(node + 1))
    if group.paths is not None:
        assert group.owners[row] == sequence
        seen = group.paths[row, : group.positions[row] - cached + 1].tolist()
        assert seen[0] == 0
        assert seen[-1] == node
    places = [*range(cached), *(cached + i for i in seen)]
    if group.window is not None:
        stand = [*range(cached), *group.positions[start:].tolist()]
        begin = stand[cached + node] - group.window + 1
        places = [place for place in places if stand[place] >= begin]
    return [blocks[p // TOKENS_PER_BLOCK] * TOKENS_PER_BLOCK + p % TOKENS_PER_BLOCK for p in places]


def owners(group):
    """(row, sequence) of all rows that belong to one."""
    return [
        (start + node, index)
        for index, (_, fed, start) in enumerate(group.sequences[:, :HEADER].tolist())
        for node in range(fed)
    ]


def paged_reference(queries, keys, values, group, scale=None):
    """What paged attention computes, a row at a time; rows of no sequence become NaN."""
    assert scale is None
    out = queries.new_full((len(queries), queries[0].numel()), float("nan"))
    group_size = queries.shape[1] // keys.shape[1]
    for row, sequence in owners(group):
        slots = visible(group, row, sequence)
        k, v = (part[slots].repeat_interleave(group_size, 1) for part in (keys, values))
        scores = torch.einsum("hd,nhd->hn", queries[row], k) / queries.shape[-1] ** 0.5
        out[row] = torch.einsum("hn,nhd->hd", scores.softmax(-1), v).flatten()
    return out


def attend_packed(queries, keys, values, groups, scale=None):
    """trtla's attention without pages, over all groups of a batch."""
    return torch.cat([g.attend(queries[g.rows], keys, values, scale) for g in groups])


TRIPLE = LookaheadConfig(4, 4, 3)


@functools.cache
def llama(dtype=torch.float32, device=CPU):
    """A small random model whose greedy texts loop, so that drafts are accepted."""
    variant = Variant("paged", {"max_position_embeddings": 160})
    model = make_model(variant)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(2.0)
    folder = Path(tempfile.mkdtemp())
    save_model(model, variant, folder / "hf")
    convert(folder / "hf", folder / "ckpt", dtype="float32")
    checkpoint = Checkpoint.open(folder / "ckpt")
    return LlamaModel(checkpoint.config, checkpoint.full_tensors(), dtype, device)


@contextmanager
def reference_attention():
    """Paged groups are attended by the reference, everything else as ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged_attention, "paged_attend", paged_reference)
        yield patch


@contextmanager
def tapped(model, feeds, taps=(1, 0)):
    """Layers are tapped meanwhile: one of the drafters wants their states."""
    feeds[-1].sequence.drafter.wants_states = True
    model.taps = taps
    try:
        yield
    finally:
        model.taps = ()


def fake_capture(run):
    """A graph that runs everything again."""
    run()
    return run


def wide_room(feeds):
    """More of everything than the feeds need, as a bucket has."""
    exact = Room.of(feeds)
    return Room(
        exact.tokens + 37,
        exact.prompt_tokens,
        exact.rows + 11,
        exact.prompts,
        exact.trees + 3,
        exact.longest_prompt,
        exact.longest_tree + 70,
        exact.blocks + 4,
        exact.context + 99,
    )


def filled_cache(model):
    """A cache of random numbers whose last block is free, the others are sequences'."""
    cache = model.new_cache(NUM_BLOCKS + 1)
    cache.data.copy_(torch.randn(cache.data.shape, generator=torch.Generator().manual_seed(1)))
    cache.pool.allocate(NUM_BLOCKS * TOKENS_PER_BLOCK)
    return cache
