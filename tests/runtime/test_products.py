"""Matrix products of a fixed order: interpreted, compiled for GPUs that are not there, and run on
one that is.

bfloat16 is for GPUs only: the interpreter rounds to it wrongly.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples

pytest.importorskip("triton")

from tests.support.paged import compiled_in_a_process
from tests.support.products import (
    SHAPES_1B,
    SHAPES_8B,
    exact,
    interpreted,
    numbers,
    steady,
    sums_in_order,
)
from tests.support.unchanged import CUDA_SOURCES
from trtla.runtime.models.cuda.products import MOST_ROWS
from trtla.runtime.models.layers import Linear

pytestmark = [pytest.mark.deep, CUDA_SOURCES]

CUDA = torch.device("cuda")
COUNTS = (1, 2, 7, 16, 33, 84, 120, 128, 300)


def check_values(product, states):
    """Sums in float32, rounded once."""
    wanted, rounded = exact(product, states), product(states)
    assert rounded.dtype == states.dtype
    wide = product.wide(states)
    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide.double(), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(rounded, wide.to(rounded.dtype))


@interpreted
@examples(24)
@given(st.integers(1, 150), st.integers(1, 300), st.integers(1, 140), st.booleans())
@example(64, 2048, 3, True)  # four parts
@example(200, 1100, 17, True)  # two, the last one with a shorter end
@example(70, 128, 257, False)  # three tiles of rows
def test_products_are_right_for_all_sizes(outputs, inputs, count, bias):
    check_values(steady(outputs, inputs, bias), numbers(count, inputs))


@interpreted
@pytest.mark.parametrize(("outputs", "inputs"), [(70, 300), (64, 2048)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_row_has_the_same_bits_alone_and_among_others(outputs, inputs, bias):
    product, states = steady(outputs, inputs, bias), numbers(130, inputs)
    with sums_in_order():
        among = {count: product.wide(states[:count]) for count in (1, 2, 16, 33, 84, 130)}
        last = product.wide(states[129:])
    for count, found in among.items():
        assert torch.equal(found, among[130][:count])
    assert torch.equal(last, among[130][129:])


@interpreted
def test_states_that_lie_apart_are_multiplied():
    product, states = steady(70, 256), numbers(5, 512)
    assert torch.equal(product(states[:, 256:]), product(states[:, 256:].contiguous()))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("count", [0, MOST_ROWS + 1])
def test_prompts_are_multiplied_as_ever(count, bias):
    product, states = steady(70, 256, bias), numbers(count, 256)
    plain = Linear(None, product.transposed, product.bias)
    assert torch.equal(product(states), plain(states))
    assert torch.equal(product.wide(states), plain.wide(states))
    assert (product.widens, product.input_scale) == (plain.widens, None)


COMPILE = """
import re, subprocess, sys
from pathlib import Path
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from trtla.runtime.models.cuda import product_kernels as kernels, products

capability, shared, binary = *map(int, sys.argv[1:3]), Path(sys.argv[3], "kernel.cubin")
target, gpu = GPUTarget("cuda", capability, 32), products.Gpu(shared, capability // 10)
instruction = "wgmma.mma_async.sync.aligned.m64n{}k16" if gpu.major == 9 else "m16n8k16"

def check(kernel, out, bias, warps, stages=3, **constants):
    pointers = dict(states="*bf16", weight="*bf16", sums="*fp32", bias="*bf16", out=out)
    pointers = {name: kind for name, kind in pointers.items() if name in kernel.arg_names}
    numbers = [name for name in ("outputs", "inputs", "rows", "parts") if name in kernel.arg_names]
    constants["BIAS"] = bias
    signature = pointers | dict.fromkeys(numbers, "i32") | dict.fromkeys(constants, "constexpr")
    names = [name for name in (*pointers, *numbers[:-1]) if name not in ("bias", "rows")]
    aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in names}
    source = ASTSource(kernel, signature, constants, aligned)
    done = compile(source, target=target, options=dict(num_warps=warps, num_stages=stages))
    binary.write_bytes(done.asm["cubin"])
    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(binary)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert " STACK:0 " in said and " LOCAL:0 " in said, (constants, said)
    assert done.metadata.shared <= shared, (constants, done.metadata.shared)
    return done.asm["ptx"]

for tile in products._TILES:
    launch, out = (gpu.warps(tile), gpu.stages(tile)), "*fp32" if tile < 64 else "*bf16"
    assert launch[1] >= 3
    constants = dict(BM=tile, BN=products._OUTPUTS, BK=products._INPUTS, EVEN=tile != 32)
    code = check(kernels.multiply, out, tile > 64, *launch, **constants)
    assert instruction.format(tile) in code, constants
check(kernels.add_parts, "*bf16", True, 4, PARTS=4, BLOCK=1024)
"""


@pytest.mark.parametrize(("capability", "shared"), [(80, 166912), (89, 101376), (90, 232448)])
def test_kernels_compile_without_a_gpu_and_fit_into_its_memory(capability, shared, tmp_path):
    compiled_in_a_process(COMPILE, tmp_path, capability, shared, tmp_path)


# On a GPU.


def check_rows(outputs, inputs, dtype):
    """The bits of a row alone and among others, and what they are near."""
    product = steady(outputs, inputs, outputs % 64 > 0, dtype, CUDA)
    states = numbers(max(COUNTS), inputs, dtype=dtype, device=CUDA)
    alone = torch.cat([product(row) for row in states.split(1)])
    for count in COUNTS:
        assert torch.equal(product(states[:count]), alone[:count]), count
        assert torch.equal(product.wide(states[:count]).to(dtype), alone[:count]), count
    wanted = exact(product, states[:7])
    torch.testing.assert_close(product.wide(states[:7]).double(), wanted, rtol=5e-4, atol=5e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES_8B, *SHAPES_1B, (1000, 576), (70, 130)])
def test_bfloat16_rows_have_the_same_bits_among_any_number_on_a_gpu(shape):
    check_rows(*shape, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4096, 14336), (1000, 576)])
def test_float16_rows_have_the_same_bits_among_any_number_on_a_gpu(shape):
    check_rows(*shape, torch.float16)


@pytest.mark.gpu
def test_a_graph_gives_the_same_product_on_a_gpu():
    product = steady(4096, 4096, True, torch.bfloat16, CUDA)
    states = numbers(84, 4096, dtype=torch.bfloat16, device=CUDA)
    wanted, graph = product(states), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = product(states)
    found.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, wanted)
