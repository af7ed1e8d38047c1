"""The forward of EAGLE-3 heads, compiled and in PyTorch, beside a reference in float64."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from tests.support.compiled import (
    CPU,
    arrays,
    config_of,
    native_of,
    needs,
    needs_compiler,
    weights_in,
    weights_of,
)
from tests.support.head_reference import MUTANTS, Reference, Text, eagle_config, random_head
from trtla.errors import UsageError
from trtla.formats.blocks import BlockTensor
from trtla.runtime.device import Device
from trtla.runtime.models.heads.head_model import ROW, HeadFeed
from trtla.runtime.models.heads.load_head import load_head
from trtla.runtime.models.heads.native_head import NativeHead
from trtla.runtime.models.heads.panels import WeightTypes, rounded
from trtla.runtime.models.heads.tensor_head import Ends, TensorHead
from trtla.runtime.models.kv_cache import SlotTable
from trtla.runtime.models.layers import Linear
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.models.tensors import numbers
from trtla.runtime.threads import num_threads, set_threads

BOTH = ("lm_head", "embedding")
KINDS = {
    "plain": {},
    "mha": {"num_key_value_heads": 4, "head_size": 16},
    "mqa": {"num_key_value_heads": 1, "num_attention_heads": 3},
    "wider-target": {"target_hidden_size": 96, "own": BOTH},
    "four-taps": {"boundaries": (1, 2, 3, 4)},
    "whole-vocabulary": {"vocab_size": 75},
    "targets-lm-head": {"vocab_size": 75, "own": ()},
    "few-tokens": {"vocab_size": 9},
    "window": {"layer_windows": (4,)},
    "fc-norm": {"flags": ("fc_norm",)},
    "input-norm": {"flags": ("input_norm",)},
    "norm-before-residual": {"flags": ("norm_before_residual",)},
    "norm-output": {"flags": ("norm_output",)},
    "all-norms": {"flags": ("fc_norm", "norm_before_residual", "norm_output")},
}
TABLES = [SlotTable.of((5,)), SlotTable.of((4, 2, 6))]
FIRSTS = (0, 28)
"""The first entry of each text: the second one's pairs lie in two blocks."""
PAIRS, DRAFTED, ACCEPTED = 5, 4, 3


def head_of(own=("lm_head",), **keys):
    return random_head(eagle_config(**keys), own)


def story(fuse, feed, hidden, wrong_pairs=False):
    """Two texts of known tokens and states: pairs, drafted ones, and pairs of accepted tokens.

    Args:
        fuse: the target's states [taps, tokens, its hidden size] -> those of pairs.
        feed: (text, cached pairs, tokens, states) of each text -> its rows and next states.
        hidden: the target's states of each text.
        wrong_pairs: join states with their own token.
    """
    noise = np.random.default_rng(5)
    texts = [noise.integers(75, size=PAIRS + ACCEPTED + 1).tolist() for _ in hidden]
    drafted = noise.integers(75, size=(DRAFTED, len(texts))).tolist()

    def known(start, stop):
        shift = 0 if wrong_pairs else 1
        states = [fuse(one[:, start:stop]) for one in hidden]
        return [
            (start, text[start + shift : stop + shift], state)
            for text, state in zip(texts, states, strict=True)
        ]

    steps = [feed(known(0, PAIRS))]
    for level, tokens in enumerate(drafted):
        states = [state for _, state in steps[-1]]
        grown = zip(tokens, states, strict=True)
        steps.append(feed([(PAIRS + level, [token], state[None]) for token, state in grown]))
    return [*steps, feed(known(PAIRS, PAIRS + ACCEPTED))]


def states_of(config, seed=3):
    noise = np.random.default_rng(seed)
    shape = (len(FIRSTS), len(config.boundaries), PAIRS + ACCEPTED, config.target_hidden_size)
    return noise.standard_normal(shape).astype(np.float32)


def by_model(model, config):
    cache = model.new_cache(8)

    def feed(fed):
        feeds = [
            HeadFeed(table, first, *one)
            for table, first, one in zip(TABLES, FIRSTS, fed, strict=True)
        ]
        rows = model.forward(feeds, cache)
        return [
            ((ids.copy(), logs.copy()), state.copy())
            for ids, logs, state in zip(*rows, strict=True)
        ]

    return story(model.fuse, feed, states_of(config))


def by_reference(head, ends, mutant="", tensors=None):
    """The same with the float64 reference; `ends`: the target's embedding and lm_head."""
    names = dict(zip(("embedding", "lm_head"), ends, strict=True))
    names |= {name: head.tensor(name) for name in head.tensors} | (tensors or {})
    reference = Reference(head.config, names, head.target_ids, mutant)
    texts = [Text(first) for first in FIRSTS]

    def fuse(states):
        return np.stack([reference.fuse(states[:, i]) for i in range(states.shape[1])])

    def feed(fed):
        found = []
        for text, (cached, tokens, states) in zip(texts, fed, strict=True):
            del text.pairs[cached:]
            rows = [reference.pair(text, s, t) for s, t in zip(states, tokens, strict=True)]
            found.append(rows[-1])
        return found

    return story(fuse, feed, states_of(head.config), mutant == "pairs")


SUM_ERROR = 0.04
"""The most by which the compiled sum of probabilities makes all logarithms of a row wrong."""


def error(found, wanted, rough_sum=False):
    """The largest error of logarithms and states; infinite where an id is none of the head's.

    Args:
        rough_sum: all logarithms of a row may be wrong by the same, up to `SUM_ERROR`.
    """
    worst = 0.0
    for ours, theirs in zip(found, wanted, strict=True):
        for ((ids, logs), state), (wanted_logs, wanted_state) in zip(ours, theirs, strict=True):
            best = sorted(wanted_logs.values(), reverse=True)[:ROW]
            there, named = logs[: len(best)], ids[: len(best)].tolist()
            if not set(named) <= set(wanted_logs):
                return float("inf")
            assert (ids[len(best) :] == -1).all()
            most = SUM_ERROR if rough_sum else 0.0
            shift = min(max(best[0] - there[0], -most), most)
            own = [wanted_logs[token] for token in named]
            apart = [np.abs(there + shift - one).max() for one in (best, own)]
            worst = max(worst, *apart, np.abs(state - wanted_state).max())
    return worst


EMBEDDING, LM_HEAD = "transformer.vocab_embedding.weight", "lm_head.weight"


@functools.cache
def target():
    return native_of(config_of(), weights_of(config_of()))


def ends():
    weights = dict(weights_of(config_of()))
    return [weights[name] for name in (EMBEDDING, LM_HEAD)]


def compiled(head):
    return NativeHead(head, head.config, target())


def in_float64(head):
    embedding, lm_head = (end.double() for end in ends())
    given = Ends(embedding, Linear.of(lm_head))
    return TensorHead(head, head.config, given, torch.float64, CPU)


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_both_forwards_follow_the_formulas(kind):
    head = head_of(**KINDS[kind])
    wanted = by_reference(head, ends())
    assert error(by_model(in_float64(head), head.config), wanted) < 1e-10
    assert error(by_model(compiled(head), head.config), wanted, rough_sum=True) < 1e-4


@needs_compiler
@pytest.mark.parametrize("mutant", [*MUTANTS, "pairs"])
def test_every_mutant_of_the_formulas_is_seen(mutant):
    head = head_of()
    wrong = by_reference(head, ends(), mutant)
    assert error(by_model(in_float64(head), head.config), wrong) > 0.05
    assert error(by_model(compiled(head), head.config), wrong, rough_sum=True) > 0.05


def rounded_reference(head, target, weights):
    """The reference with the numbers of the weights as they are rounded."""
    types = WeightTypes(target.layer_type, target.ends[1].stored)
    tensors = {}
    for name in head.tensors:
        weight = head.tensor(name)
        if weight.ndim == 2:
            found = rounded(weight, name, types.of(name, weight.shape[1]))
            tensors[name] = found.dequantize() if isinstance(found, BlockTensor) else found
    given = [numbers(weights[name]) for name in (EMBEDDING, LM_HEAD)]
    return functools.partial(by_reference, head, given, tensors=tensors)


INT8_ERROR = 0.5
"""The most by which activations of 8 bits are wrong; a mutant is wrong by more than 10."""


@needs_compiler
@pytest.mark.parametrize(
    ("kind", "own"), [("Q4_0", "Q4_0"), ("Q4_1", "Q8_0"), ("Q8_G64", "Q8_G64"), ("", "bfloat16")]
)
def test_weights_are_of_the_targets_type_where_the_project_rounds_to_it(kind, own):
    dtype = torch.float32 if kind else torch.bfloat16
    needs(dtype)
    config = config_of(intermediate_size=128)
    weights = dict(
        weights_in(config, lambda _: kind) if kind else arrays(weights_of(config, dtype))
    )
    model, head = native_of(config, weights.items(), dtype), head_of(intermediate_size=128)
    found = NativeHead(head, head.config, model)
    assert {one.stored for one in found._panels.matrices.values()} == {own}
    wanted = rounded_reference(head, model, weights)()
    assert error(by_model(found, head.config), wanted, rough_sum=True) < INT8_ERROR


@needs_compiler
def test_sizes_that_no_block_divides_are_bfloat16():
    config = config_of(intermediate_size=128)
    model = native_of(config, weights_in(config, lambda _: "Q4_0"))
    head = head_of()  # its intermediate size is 112
    found = NativeHead(head, head.config, model)._panels.matrices
    assert {name for name, one in found.items() if one.stored == "bfloat16"} == {"down"}


def loaded(head, target, dtype="float32"):
    return load_head(head, target, config_of(), dtype, Device("cpu"))


@needs_compiler
def test_a_head_is_compiled_where_its_target_is_and_registers_are_filled():
    whole, odd = head_of(), head_of(intermediate_size=111, vocab_size=75, own=())
    assert isinstance(loaded(whole, target()), NativeHead)
    found = loaded(odd, target())
    assert isinstance(found, TensorHead)
    assert error(by_model(found, odd.config), by_reference(odd, ends())) < 1e-4
    plain = LlamaModel(config_of(), arrays(weights_of(config_of())), torch.float32, CPU)
    shared = head_of(vocab_size=75, own=())
    found = loaded(shared, plain)
    assert isinstance(found, TensorHead)
    assert error(by_model(found, shared.config), by_reference(shared, ends())) < 1e-4


@needs_compiler
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_size": 96}, "has no embedding, and that of its model does not fit"),
        ({"hidden_size": 96, "vocab_size": 75, "own": ("embedding",)}, "has no lm_head"),
        ({"own": ("embedding",)}, "has no lm_head, and that of its model does not fit"),
    ],
)
def test_a_head_that_does_not_fit_its_target_is_refused(keys, message):
    with pytest.raises(UsageError, match=message):
        loaded(head_of(**keys), target())
    part = native_of(config_of(), weights_of(config_of()))
    part.is_part = True
    loaded(head_of(vocab_size=75), part)
    with pytest.raises(UsageError, match="has no lm_head, and that of its model does not fit"):
        loaded(head_of(vocab_size=75, own=()), part)


@needs_compiler
def test_both_describe_their_sizes_alike():
    head = head_of()
    ours, theirs = loaded(head, target()), in_float64(head)
    assert ours.taps == theirs.taps == (0, 1, 2)
    assert theirs.block_bytes == 2 * ours.block_bytes == 2 * 32 * 2 * 2 * 32 * 4
    own, padding = theirs.weight_bytes // 8, 64 * 2 * 64  # last panels are not full
    assert 4 * own <= ours.weight_bytes <= 4 * (own + padding)


def rows_of(model, cache, feeds):
    return [array.copy() for array in model.forward(feeds, cache)]


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "all-norms"])
def test_a_pair_has_the_same_bits_alone_and_beside_others(kind, threads):
    head, before = head_of(**KINDS[kind]), num_threads()
    model, width = NativeHead(head, head.config, target()), 64
    noise = np.random.default_rng(2)
    lengths = (1, 40, 5)
    hidden = noise.standard_normal((3, sum(lengths), width)).astype(np.float32)
    cuts = np.cumsum(lengths)[:-1]
    tables = [SlotTable.of(blocks) for blocks in ((5,), (4, 2), (0, 6))]
    tokens = np.split(noise.integers(75, size=sum(lengths)), cuts)
    try:
        set_threads(threads)
        states = np.split(model.fuse(hidden), cuts)
        feeds = [
            HeadFeed(table, 7, 0, own.tolist(), state)
            for table, own, state in zip(tables, tokens, states, strict=True)
        ]
        together = rows_of(model, model.new_cache(8), feeds)
        set_threads(1)
        for at, (feed, part) in enumerate(zip(feeds, np.split(hidden, cuts, axis=1), strict=True)):
            one_by_one = np.concatenate(
                [model.fuse(part[:, i : i + 1]) for i in range(len(feed.ids))]
            )
            assert np.array_equal(one_by_one, feed.states)
            cache = model.new_cache(8)
            for i, token in enumerate(feed.ids):
                single = feed._replace(cached=i, ids=[token], states=feed.states[i : i + 1])
                alone = rows_of(model, cache, [single])
            assert all(np.array_equal(a[at], b[0]) for a, b in zip(together, alone, strict=True))
    finally:
        set_threads(before)
