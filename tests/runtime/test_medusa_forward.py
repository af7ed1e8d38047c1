"""The rows of Medusa heads, compiled and in PyTorch, beside a reference in float64."""

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
    needs_compiler,
    weights_in,
    weights_of,
)
from trtla.errors import UsageError
from trtla.formats.blocks import BlockTensor
from trtla.formats.heads.head import Head, MedusaConfig
from trtla.formats.heads.medusa import medusa_shapes
from trtla.runtime.device import Device
from trtla.runtime.models.heads.head_model import ROW
from trtla.runtime.models.heads.load_head import load_head
from trtla.runtime.models.heads.native_medusa import NativeMedusa
from trtla.runtime.models.heads.panels import WeightTypes, rounded
from trtla.runtime.models.heads.tensor_medusa import TensorMedusa
from trtla.runtime.models.llama import LlamaModel
from trtla.runtime.models.tensors import numbers

TOKENS = 5
SUM_ERROR = 0.04
"""The most by which the compiled sum of probabilities makes all logarithms of a row wrong."""
KINDS = {
    "one block": MedusaConfig(64, 75, 3, 1),
    "two blocks": MedusaConfig(64, 75, 2, 2),
    "no block": MedusaConfig(64, 75, 2, 0),
    "the target's lm_head": MedusaConfig(64, None, 4, 1),
}


def head_of(config, seed=1):
    """Heads with numbers of bfloat16."""
    noise = np.random.default_rng(seed)

    def tensor(shape):
        drawn = (noise.standard_normal(shape) * 0.15).astype(np.float32)
        return (drawn.view(np.uint32) & 0xFFFF0000).view(np.float32)

    found = {name: tensor(shape) for name, shape in medusa_shapes(config).items()}
    return Head("heads", config, {name: one.copy for name, one in found.items()})


@functools.cache
def weights():
    return dict(arrays(weights_of(config_of(), torch.float32)))


@functools.cache
def target():
    return native_of(config_of(), weights().items())


def in_torch(dtype):
    return LlamaModel(config_of(), weights().items(), dtype, CPU)


def loaded(head, model, dtype="float32"):
    return load_head(head, model, config_of(), dtype, Device("cpu"))


def states():
    drawn = np.random.default_rng(4).standard_normal((TOKENS, 64))
    return (3 * drawn).astype(np.float32)


def reference(head, given, tensors=None):
    """All logarithms of probabilities [tokens, heads, vocabulary], one number after the other."""
    own = {name: head.tensor(name) for name in head.tensors} | (tensors or {})
    own = {name: np.float64(one) for name, one in own.items()}
    norm, lm_head = (
        np.float64(numbers(given[n])) for n in ("transformer.ln_f.weight", "lm_head.weight")
    )
    found = []
    for state in np.float64(states()):
        last = state / np.sqrt((state * state).sum() / len(state) + config_of().norm_epsilon) * norm
        rows = []
        for k in range(head.config.num_heads):
            u = last
            for block in range(head.config.num_layers):
                inner = own[f"{k}.{block}.weight"] @ u + own[f"{k}.{block}.bias"]
                u = u + inner / (1 + np.exp(-inner))
            logits = own.get(f"{k}.lm_head", lm_head) @ u
            rows.append(logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
        found.append(rows)
    return np.array(found)


def error(model, wanted, rough_sum=False):
    """The largest error of logarithms, of the tokens named and of the best ones."""
    ids, logs = model.rows(states())
    assert ids.shape == logs.shape == (*wanted.shape[:2], ROW)
    assert ids.dtype == np.int32
    if rough_sum:
        shift = wanted.max(-1, keepdims=True) - logs[..., :1]
        assert np.abs(shift).max() < SUM_ERROR
        logs = logs + shift
    best = -np.sort(-wanted, axis=-1)[..., :ROW]
    own = np.take_along_axis(wanted, ids, -1)
    return max(np.abs(logs - best).max(), np.abs(logs - own).max())


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_both_follow_the_formulas(kind):
    head = head_of(KINDS[kind])
    wanted = reference(head, weights())
    exact = loaded(head, in_torch(torch.float64), "float64")
    assert isinstance(exact, TensorMedusa)
    assert error(exact, wanted) < 1e-10
    compiled = loaded(head, target())
    assert isinstance(compiled, NativeMedusa)
    assert error(compiled, wanted, rough_sum=True) < 1e-4
    assert exact.taps == compiled.taps == (1,)
    assert exact.block_bytes == compiled.block_bytes == 0
    own = sum(one.size for name in head.tensors if (one := head.tensor(name)).ndim == 2)
    assert exact.weight_bytes == 8 * own
    padding = head.config.num_heads * 64 * 64  # the last panels are not full
    assert 4 * own <= compiled.weight_bytes <= 4 * (own + padding)


@needs_compiler
def test_a_vocabulary_smaller_than_a_row_is_filled_up():
    config = config_of(vocab_size=9)
    given = dict(arrays(weights_of(config)))
    head = head_of(MedusaConfig(64, 9, 2, 1))
    for model in (
        native_of(config, given.items()),
        LlamaModel(config, given.items(), torch.float32, CPU),
    ):
        ids, logs = load_head(head, model, config, "float32", Device("cpu")).rows(states())
        assert (ids[..., 9:] == -1).all()
        assert np.isneginf(logs[..., 9:]).all()
        assert (np.sort(ids[..., :9]) == np.arange(9)).all()


INT8_ERROR = 0.5
"""The most by which activations of 8 bits are wrong."""


@needs_compiler
@pytest.mark.parametrize(("kind", "own"), [("Q4_0", "Q4_0"), ("Q4_1", "Q8_0")])
def test_weights_are_of_the_targets_type(kind, own):
    config = config_of(intermediate_size=128)
    given = dict(weights_in(config, lambda _: kind))
    model, head = native_of(config, given.items()), head_of(KINDS["one block"])
    found = load_head(head, model, config, "float32", Device("cpu"))
    assert {one.stored for one in found._panels.matrices.values()} == {own}
    types = WeightTypes(model.layer_type, model.ends[1].stored)
    tensors = {}
    for name in head.tensors:
        if not name.endswith("bias"):
            kept = rounded(head.tensor(name), name, types.of(name, 64))
            assert isinstance(kept, BlockTensor)
            tensors[name] = kept.dequantize()
    assert error(found, reference(head, given, tensors), rough_sum=True) < INT8_ERROR


@needs_compiler
def test_heads_without_lm_head_are_refused_beside_a_part():
    part = native_of(config_of(), weights().items())
    part.is_part = True
    loaded(head_of(KINDS["one block"]), part)
    with pytest.raises(UsageError, match="has no lm_head, and that of its model does not fit"):
        loaded(head_of(KINDS["the target's lm_head"]), part)
