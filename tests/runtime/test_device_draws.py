"""The Triton kernels that choose tokens, against `draw`: interpreted on a CPU, compiled on a GPU.

Without Triton everything here is skipped.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.paged import compiled_in_a_process
from tests.support.tensors import argmax, draw_at
from tests.support.toys import hash_scores, request, run, tokens_of, toy_executor
from tests.support.unchanged import CUDA_SOURCES

pytest.importorskip("triton")

from trtla.runtime.drafters.lookahead import lookahead_drafter
from trtla.runtime.request import NO_TOKEN
from trtla.runtime.sampling import device_kernels
from trtla.runtime.sampling.device import (
    DeviceSampler,
    Tiles,
    device_sampler,
    difference,
    self_test,
)
from trtla.runtime.sampling.predict import Draw, StepSampler
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.sampling import SamplingParams

pytestmark = [
    pytest.mark.deep,
    CUDA_SOURCES,
]

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NAN, INF = float("nan"), float("inf")
SMALL = Tiles(chunk=64, chunks=4, block=128)
interpreted = pytest.mark.skipif(
    not type(device_kernels.choose_rows).__name__.startswith("Interpreted"),
    reason="Triton was imported to compile, not to interpret",
)
heats = st.sampled_from([1e-3, 0.3, 1.0, 3.0, 100.0])
top_ks = st.sampled_from([0, 1, 2, 5, 40, 1000])
top_ps = st.sampled_from([1e-9, 0.05, 0.5, 0.9, 0.999, 1.0])
noises = st.floats(0.0, 1.0, exclude_max=True)
filters = st.builds(
    lambda heat, top_k, top_p: SamplingParams(temperature=heat, top_k=top_k, top_p=top_p),
    heats, top_ks, top_ps,
)  # fmt: skip


few = st.integers(1, 200)


@st.composite
def rows(draw, most_rows=3, sizes=few):
    """Logits [rows, vocab] with equal ones and hidden tokens; each row has some that are not."""
    shape, salt = (draw(st.integers(1, most_rows)), draw(sizes)), draw(st.integers(0, 999))
    generator = torch.Generator().manual_seed(salt)
    steps, hidden = draw(st.sampled_from([0.25, 2.0, 1e4])), draw(st.sampled_from([0.0, 0.5, 0.97]))
    logits = torch.randn(shape, generator=generator).mul_(3.0 * steps).round_().div_(steps)
    unseen = torch.rand(shape, generator=generator) < hidden
    unseen[:, int(torch.randint(shape[1], (), generator=generator))] = False
    return logits.masked_fill_(unseen, -INF)


def right_draws(logits, draw):
    """What `draw_at` says; where one ulp decides how far the nucleus reaches, either way."""
    params = draw.params
    edges = [params.top_p]
    if params.top_p < 1.0:  # sums are added in another order
        edges += [params.top_p * (1 - 1e-13), min(1.0, params.top_p * (1 + 1e-13))]
    row = logits[draw.row : draw.row + 1]
    return {int(draw_at(row, replace(params, top_p=edge), [draw.noise])) for edge in edges}


def check(logits, draws, sampler):
    """All choices of a step are those of `draw`, and possible ones."""
    greedy, drawn = sampler.choose(logits, draws)
    assert greedy == argmax(logits).tolist()
    for draw, token in zip(draws, drawn, strict=True):
        assert token in right_draws(logits, draw)
        assert token == NO_TOKEN or logits[draw.row, token] > -INF


@interpreted
@examples(80)
@given(rows(), st.data())
def test_choices_are_those_of_pytorch(logits, data):
    """Every row has filters and a seed of its own; some are not drawn."""
    drawn = data.draw(st.sets(st.integers(0, len(logits) - 1)))
    draws = [Draw(row, data.draw(filters), data.draw(noises)) for row in drawn]
    check(logits, draws, DeviceSampler(SMALL))


@interpreted
@pytest.mark.parametrize(("top_k", "top_p"), [(2, 1.0), (4, 1.0), (0, 0.5), (4, 0.5)])
def test_filters_exclude_exactly_what_draw_excludes(top_k, top_p):
    """So flat that every token would win some row."""
    logits = torch.tensor([0.1, 0.3, 0.0, 0.4, 0.3, 0.2]).repeat(16, 1)
    params = SamplingParams(temperature=2.0, top_k=top_k, top_p=top_p)
    draws = [Draw(row, params, row / 16) for row in range(16)]
    check(logits, draws, DeviceSampler(Tiles(chunk=8, chunks=1, block=8)))


@interpreted
@examples(24)
@given(
    rows(most_rows=1),
    st.sampled_from([5e-324, 1e-310, 1e-45, 1e-39, 1e60, 1e300]),
    top_ks,
    top_ps,
    noises,
)
def test_extreme_temperatures_are_those_of_pytorch(logits, heat, top_k, top_p, noise):
    """Every weight is 1 or 0 there: sums are exact, and so is where the nucleus ends."""
    params = SamplingParams(temperature=heat, top_k=top_k, top_p=top_p)
    _, drawn = DeviceSampler(SMALL).choose(logits, [Draw(0, params, noise)])
    assert drawn == draw_at(logits, params, [noise]).tolist()


@interpreted
@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 0.8)])
def test_rows_that_are_no_answer_leave_the_others_alone(size, top_k, top_p):
    logits = torch.arange(float(size)).remainder_(5.0).repeat(5, 1)
    logits[0, size // 2], logits[2, size - 1], logits[4] = NAN, INF, -INF
    params = SamplingParams(temperature=0.7, top_k=top_k, top_p=top_p)
    draws = [Draw(row, params, 0.3) for row in range(5)]
    check(logits, draws, DeviceSampler(SMALL))
    assert [token == NO_TOKEN for token in argmax(logits).tolist()] == [1, 0, 1, 0, 1]


@interpreted
def test_a_row_does_not_depend_on_those_beside_it_nor_on_steps_before():
    logits = torch.randn(3, 130, generator=torch.Generator().manual_seed(5)) * 2
    kinds = [(0, 1.0), (7, 1.0), (0, 0.7)]
    params = [SamplingParams(temperature=0.8, top_k=k, top_p=p) for k, p in kinds]
    draws = [Draw(row, params[row], row / 9) for row in range(3)]
    sampler = DeviceSampler(SMALL)
    alone = [sampler.choose(logits[r : r + 1], [draws[r]._replace(row=0)]) for r in range(3)]
    greedy, drawn = sampler.choose(logits, draws)
    assert [([g], [d]) for g, d in zip(greedy, drawn, strict=True)] == alone
    assert sampler.choose(logits[:0], []) == ([], [])
    assert sampler.choose(logits.T[:100].contiguous().T, [])[0] == argmax(logits[:, :100]).tolist()


@interpreted
def test_half_precision_logits_are_read_as_they_are():
    logits = torch.randn(2, 90, generator=torch.Generator().manual_seed(5)).half()
    params = SamplingParams(temperature=0.8, top_k=9, top_p=0.7)
    check(logits, [Draw(0, params, 0.1), Draw(1, params, 0.7)], DeviceSampler(SMALL))


@interpreted
def test_texts_of_a_batch_are_those_of_pytorch(monkeypatch):
    """Greedy and sampled requests with lookahead, whose window asks for an argmax as well."""
    settings = [{}, {"temperature": 0.7, "top_k": 4, "top_p": 0.9}]
    texts = []
    for sampler in (None, DeviceSampler(Tiles(8, 1, 8))):
        config = LookaheadConfig(2, 3, 2)
        executor, model = toy_executor(hash_scores(6, 3), 6, config, drafter=lookahead_drafter)
        monkeypatch.setattr(type(model), "row_sampler", sampler)
        requests = [request([0, 1], 4, None, i, seed=i, **s) for i, s in enumerate(settings)]
        texts.append({key: tokens_of(out) for key, out in run(executor, requests).items()})
    assert texts[0] == texts[1]


class Biased(StepSampler):
    """Draws as `draw` does, but for one row in one of its answers."""

    def __init__(self, greedy, row):
        self.greedy, self.row = greedy, row

    def choose(self, logits, draws):
        drawn = [int(draw_at(logits[d.row : d.row + 1], d.params, [d.noise])) for d in draws]
        choices = argmax(logits).tolist(), drawn
        choices[0 if self.greedy else 1][self.row] += 1
        return choices


@interpreted
def test_the_kernels_pass_the_self_test():
    assert self_test(CPU) is None


@pytest.mark.parametrize("greedy", [True, False])
def test_the_self_test_names_a_wrong_choice(greedy):
    problem = difference(CPU, Biased(greedy, 3))
    assert problem.startswith(f"the {'argmax' if greedy else 'draw'} of row 3 is ")


def test_processors_have_no_device_sampler():
    assert device_sampler(CPU) is None


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from trtla.runtime.sampling import device_kernels as kernels

types = dict(logits="*fp32", jobs="*i64", parts="*fp64", arrived="*i32", out="*i32")
types |= dict.fromkeys(("stride", "size", "chunks"), "i32")

def check(capability, kernel, **constants):
    own = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    target = GPUTarget("cuda", capability, 32)
    done = compile(ASTSource(kernel, own, constants), target=target, options={"num_warps": 8})
    assert done.asm["cubin"]

check(90, kernels.choose_rows, CHUNK=256, CHUNKS=128, DRAWS=False)
for capability in (80, 89, 90):
    check(capability, kernels.choose_rows, CHUNK=256, CHUNKS=128, DRAWS=True)
    check(capability, kernels.filter_rows, BLOCK=256)
"""


def test_kernels_compile_to_machine_code_without_a_gpu(tmp_path):
    compiled_in_a_process(COMPILE, tmp_path)


@pytest.mark.gpu
def test_the_kernels_pass_the_self_test_on_the_gpu():
    assert self_test(CUDA) is None
    assert isinstance(device_sampler(CUDA), DeviceSampler)


@pytest.mark.gpu
@examples(40)
@given(rows(most_rows=40, sizes=st.sampled_from([1, 7, 2049, 32001, 128256, 262144])), st.data())
def test_compiled_choices_are_those_of_pytorch(logits, data):
    drawn = range(data.draw(st.integers(0, len(logits))))
    draws = [Draw(row, data.draw(filters), data.draw(noises)) for row in drawn]
    check(logits.to(CUDA), draws, DeviceSampler())
