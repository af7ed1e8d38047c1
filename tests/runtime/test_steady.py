"""Which products of a model get a fixed order: those whose rows depend on their number."""

from __future__ import annotations

import dataclasses

import pytest
import torch

pytest.importorskip("triton")

from tests.support.paged import (
    NUM_BLOCKS,
    fake_capture,
    filled_cache,
    llama,
    reference_attention,
    sequence_of,
    tree_feed,
)
from tests.support.products import (
    SHAPES_1B,
    SHAPES_8B,
    interpreted,
    numbers,
    steady,
    sums_in_order,
)
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models import tensor_model
from trtla.runtime.models.cuda import steady as choices
from trtla.runtime.models.cuda.products import SteadyLinear
from trtla.runtime.models.cuda.steady import HEAD, SteadyChoice, rows_differ
from trtla.runtime.models.layers import Fp8Linear, Linear
from trtla.runtime.models.llama import LlamaModel
from trtla.settings.lookahead import LookaheadConfig

CUDA = torch.device("cuda")
PLAIN = LookaheadConfig(1, 1, 0)
COUNTS = (1, 2, 7, 16)
NAMES = {"qkv", "dense", "gate_up", "down", HEAD}


class Uneven(Linear):
    """A product that adds up in another order, or to something else, from 7 rows on."""

    __slots__ = ()
    factor = 1 + 2**-10

    def __call__(self, states):
        out = super().__call__(states)
        return out if len(states) < 7 else out * self.factor

    def wide(self, states):
        return self(states).float()


class Wrong(Uneven):
    """One that is not what a weight's product is."""

    __slots__ = ()
    factor = 1.5


def of(kind, *shape):
    made = steady(*shape)
    return kind(None, made.transposed, made.bias)


def test_rows_that_depend_on_their_number_are_found():
    states = numbers(4, 130)
    assert not rows_differ(of(Linear, 70, 130).wide, states, ())
    assert not rows_differ(of(Uneven, 70, 130), states, (1, 2, 6))
    assert rows_differ(of(Uneven, 70, 130), states, (1, 2, 7))
    product = of(Linear, 70, 130)

    def last_is_other(states):
        out = product(states)
        out[9:10] += 1
        return out

    assert not rows_differ(last_is_other, states, (1, 9))
    assert rows_differ(last_is_other, states, (10,))


def test_numbers_of_rows_without_memory_are_left_out():
    product = of(Uneven, 70, 130)

    def small(states):
        if len(states) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return product(states)

    assert not rows_differ(small, numbers(4, 130), COUNTS)


@pytest.fixture
def in_order(monkeypatch):
    monkeypatch.setattr(choices, "_COMPARED", 9)
    with sums_in_order():
        yield


@interpreted
@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("name", ["down", HEAD])
def test_a_product_gets_a_fixed_order_where_its_rows_differ(name):
    choice = SteadyChoice([*COUNTS, 100_000])
    chosen = choice(name, of(Uneven, 70, 130))
    assert isinstance(chosen, SteadyLinear)
    assert choice.steady == (name,)
    assert isinstance(choice(name, chosen), SteadyLinear)
    again = SteadyChoice([1])
    assert type(again(name, chosen)) is Linear  # what was chosen before does not count
    assert again.steady == ()


@interpreted
@pytest.mark.usefixtures("in_order")
def test_kernels_that_do_not_run_or_give_something_else_leave_cublas(monkeypatch):
    wrong = of(Wrong, 70, 130)
    assert SteadyChoice([7])("down", wrong) is wrong

    def broken(*_):
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(SteadyLinear, "_product", broken)
    uneven = of(Uneven, 70, 130)
    assert SteadyChoice(COUNTS)("down", uneven) is uneven


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wider_types_are_not_compared(dtype):
    product = of(Uneven, 70, 130)
    wide = Uneven(None, product.transposed.to(dtype))
    choice = SteadyChoice(COUNTS)
    assert choice("down", wide) is wide
    assert choice.steady == ()


# A model.


@pytest.fixture
def model():
    """One in float16 whose weights lie as on a GPU."""
    made = llama(torch.float16)
    layers, head = made._layers, made._lm_head

    def as_on_gpu(_, one):
        return Linear(None, one.transposed.t().contiguous().t(), one.bias)

    made._change_products(as_on_gpu)
    yield made
    made._layers, made._lm_head, made.steady = layers, head, ()


def products(model):
    for layer in model._layers:
        yield from (layer.qkv, layer.dense, layer.mlp.gate_up.stacked, layer.mlp.down)
    yield model._lm_head


def settled(model, monkeypatch, needs_order, lookahead=PLAIN):
    """A step's forward of the model, opened with this test of each shape."""
    monkeypatch.setattr(choices, "needs_order", needs_order)
    monkeypatch.setattr(LlamaModel, "fast", True)
    monkeypatch.setattr(tensor_model, "CudaCapture", lambda device: fake_capture)
    with reference_attention():
        limits = ExecutorLimits(3, 64, 96, 512, 101, lookahead)
        return model.step_forward(model.new_cache(8), limits)


def test_a_model_asks_once_for_each_shape_and_all_its_sizes_of_steps(model, monkeypatch):
    asked = []

    def needs_order(plain, counts, *, wide):
        asked.append((plain.transposed.shape, {*counts}, wide))
        return wide

    runner = settled(model, monkeypatch, needs_order, LookaheadConfig(2, 3, 1)).args[0]
    sizes = {bucket.tokens for bucket in runner.captured}
    assert max(sizes) > 10
    assert {shape for shape, _, _ in asked} == {one.transposed.shape for one in products(model)}
    assert [wide for _, _, wide in asked] == [False] * 4 + [True]
    assert all(sizes | {1, 2, 3} == counts for _, counts, _ in asked)
    assert model.steady == (HEAD,)
    assert [type(one) for one in products(model)][-2:] == [Linear, SteadyLinear]


@interpreted
def test_a_model_s_logits_are_the_same_by_products_of_a_fixed_order(model):
    feeds = [tree_feed(sequence_of(9, 3, list(range(NUM_BLOCKS))), (0, 1))]
    wanted = model.run(feeds, filled_cache(model)).logits
    model._change_products(lambda _, one: SteadyLinear.of_plain(one))
    found = model.run(feeds, filled_cache(model)).logits
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2 * wanted.abs().max().item())


def test_a_model_without_graphs_goes_back_to_plain_products(model, monkeypatch):
    before = [one.transposed.data_ptr() for one in products(model)]
    monkeypatch.setattr(SteadyLinear, "_product", lambda one, states, _: one.plain(states))
    settled(model, monkeypatch, lambda *_, wide: True)
    assert {type(one) for one in products(model)} == {SteadyLinear}
    assert {*model.steady} == NAMES
    assert [one.transposed.data_ptr() for one in products(model)] == before
    model.use_plain_path()
    assert {type(one) for one in products(model)} == {Linear}
    assert model.steady == ()


def test_fp8_products_stay_as_they_are(model):
    one = torch.ones(1)
    fp8 = Fp8Linear(torch.zeros(2, 2), one, one, None, torch.float16)
    model._layers = [
        dataclasses.replace(layer, mlp=dataclasses.replace(layer.mlp, down=fp8))
        for layer in model._layers
    ]
    model._change_products(lambda _, one: SteadyLinear.of_plain(one))
    assert {layer.mlp.down for layer in model._layers} == {fp8}
    assert {type(layer.dense) for layer in model._layers} == {SteadyLinear}


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES_8B, *SHAPES_1B])
def test_chosen_products_have_rows_of_the_same_bits_on_a_gpu(shape):
    counts = (1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 84, 96, 120, 128, 192, 256, 384, 512)
    plain = steady(*shape, dtype=torch.bfloat16, device=CUDA).plain
    name = HEAD if shape[0] > 100_000 else "dense"
    chosen = SteadyChoice(counts)(name, plain)
    product = chosen.wide if name == HEAD else chosen
    assert not rows_differ(
        product, numbers(40, shape[1], dtype=plain.transposed.dtype, device=CUDA), counts
    )
