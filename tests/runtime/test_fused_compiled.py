"""The fused Triton kernels compiled: for GPUs that are not there, and run on one that is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from tests.support.examples import examples

pytest.importorskip("triton")

from tests.support.fused import (
    CUDA,
    TOLERANCE,
    check_moves,
    check_norm,
    check_rotation,
    check_rounding,
    check_silu,
    fused_model,
    small_steps,
)
from tests.support.paged import compiled_in_a_process, filled_cache, llama
from tests.support.unchanged import CUDA_SOURCES

pytestmark = [
    pytest.mark.deep,
    CUDA_SOURCES,
]

COMPILE = """
import subprocess, sys
from pathlib import Path
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from trtla.runtime.models.cuda import fused as kernels

capability, binary = int(sys.argv[1]), Path(sys.argv[2], "kernel.cubin")
target = GPUTarget("cuda", capability, 32)

def check(kernel, pointers, warps, **constants):
    names = [name for name in pointers if name not in ("slots", "scale")]
    aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in names}
    signature = pointers | dict.fromkeys(constants, "constexpr")
    if kernel is kernels.add_norm:
        signature["epsilon"] = "fp32"
    if kernel is kernels.move_rows:
        signature |= dict(part_size="i64", count="i32")
    source = ASTSource(kernel, signature, constants, aligned)
    done = compile(source, target=target, options={"num_warps": warps})
    binary.write_bytes(done.asm["cubin"])
    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(binary)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert " STACK:0 " in said and " LOCAL:0 " in said, (constants, said)

def all_of(dtype, fp8):
    real, out = f"*{dtype}", "*u8" if fp8 else f"*{dtype}"
    pointers = dict.fromkeys(("states", "delta", "weight", "total"), real)
    pointers |= dict(normed=out, scale="*fp32")
    for size in (4096, 16384)[: 1 + fp8]:
        check(kernels.add_norm, pointers, 16, SIZE=size, BLOCK=size, ADD=True, FP8=fp8)
    pointers = dict.fromkeys(("qkv", "cosines", "sines", "queries"), real)
    pointers |= dict(slots="*i64", scale="*fp32", keys=out, values=out)
    sizes = dict(KV_HEADS=8, GROUP_SIZE=4, HALF=64, GROUP_BLOCK=4, HALF_BLOCK=64)
    check(kernels.rotate_write, pointers, 1, **sizes, FP8=fp8)
    pointers = dict(gate=real, up=real, out=out, scale="*fp32")
    check(kernels.silu_mul, pointers, 4, SIZE=14336, STRIDE=28672, BLOCK=1024, FP8=fp8)
    if fp8:
        pointers = dict(numbers=real, out=out, scale="*fp32")
        check(kernels.round_fp8, pointers, 4, SIZE=4096, BLOCK=1024)
    pointers = dict(data=out, moves="*i64")
    for moves in (8, 256):
        check(kernels.move_rows, pointers, 8, ROW=1024, MOVES=moves, BLOCK=2048 // moves)

for mode in sys.argv[3:]:
    all_of(mode[:4], mode[4:] == "-fp8")
"""


@pytest.mark.parametrize(
    ("capability", "modes"),
    [(80, ("bf16",)), (89, ("fp16-fp8",)), (90, ("bf16", "bf16-fp8"))],
)
def test_kernels_compile_without_a_gpu_and_nothing_spills(capability, modes, tmp_path):
    compiled_in_a_process(COMPILE, tmp_path, capability, tmp_path, *modes)


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("count", [1, 84])
def test_compiled_kernels_equal_torchs(dtype, count):
    for size in (64, 2048, 4096):
        check_norm(count, size, dtype, added=True, device=CUDA)
        check_norm(count, size, dtype, added=False, device=CUDA)
        check_silu(count, 3 * size + 8, dtype, stacked=True, device=CUDA)
        check_silu(count, 3 * size + 8, dtype, stacked=False, device=CUDA)
    for group_size, size in ((1, 64), (3, 80), (4, 128), (8, 16)):
        check_rotation(min(count, 60), 8, group_size, size, dtype, CUDA)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_compiled_moves_are_torchs(dtype):
    check_moves([(2 * i + 1, i) for i in range(40)], dtype, 8, 128, CUDA, padding=24)
    check_moves([(9, 3), (11, 4)], dtype, 2, 24, CUDA, padding=6)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1.0, 0.013])
def test_compiled_kernels_round_every_number_as_torch_does(scale):
    check_rounding(scale, CUDA)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
@examples(10)
@given(small_steps())
def test_a_fused_model_gives_the_plain_ones_logits_on_a_gpu(dtype, error, feeds):
    model = llama(dtype, CUDA)
    cache, other = filled_cache(model), filled_cache(model)
    wanted = model.run(feeds, other).logits
    with fused_model(model):
        found = model.run(feeds, cache).logits
    assert found.dtype == wanted.dtype == torch.float32
    assert (found - wanted).norm() < error * wanted.norm()
