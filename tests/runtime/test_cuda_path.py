"""Which path a model takes on CUDA: what a GPU would say is played, the test model really runs."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from tests.support.paged import CPU, fake_capture, llama, reference_attention
from tests.support.real_models import product_works
from tests.support.unchanged import CUDA_SOURCES
from trtla.errors import UsageError
from trtla.formats.config import Quantization
from trtla.formats.torch_tensors import E4M3
from trtla.runtime.models import cuda_check
from trtla.runtime.models.cuda import fused
from trtla.runtime.models.cuda.fused import FusedOperations
from trtla.runtime.models.cuda.graphs import CudaCapture
from trtla.runtime.models.cuda.paged_attention import kernels_problem
from trtla.runtime.models.cuda_check import choose_path, largest_difference
from trtla.runtime.models.layers import Fp8Linear, PlainOperations

pytestmark = CUDA_SOURCES

CUDA = torch.device("cuda")


def fake_capture_on(device):
    return fake_capture


def problem(capture_on=fake_capture_on, **changes):
    config = llama().config.model_copy(update=changes)
    return cuda_check.problem(config, torch.float32, CPU, capture_on)


@contextmanager
def played_kernels():
    """PyTorch's operations in place of all kernels: here the comparison is tested, not they."""
    with reference_attention() as patch:
        patch.setattr(fused, "FusedOperations", PlainOperations)
        yield patch


def test_what_gives_the_same_numbers_passes():
    with played_kernels():
        assert problem() is None
        assert problem(None) is None
        assert problem(layer_windows=(9, None)) is None


@pytest.mark.parametrize("wrong", [0.0, 1.05, float("nan")])
def test_wrong_numbers_are_found(monkeypatch, wrong):
    with played_kernels() as patch:
        from trtla.runtime.models.cuda import paged_attention

        attend = paged_attention.paged_attend
        patch.setattr(paged_attention, "paged_attend", lambda *args: attend(*args) * wrong)
        assert "its logits differ from PyTorch's by" in problem()


def test_windows_that_are_not_applied_are_found():
    with played_kernels() as patch:
        from trtla.runtime.models.cuda import paged_attention

        attend = paged_attention.paged_attend
        patch.setattr(
            paged_attention,
            "paged_attend",
            lambda queries, keys, values, group, scale: attend(
                queries, keys, values, replace(group, window=None), scale
            ),
        )
        assert problem() is None
        assert "its logits differ from PyTorch's by" in problem(layer_windows=(9, None))


def test_accepted_rows_that_stay_where_they_were_are_found():
    """The least of the wrong numbers: three of 81 keys are another token's."""
    with played_kernels() as patch:
        patch.setattr(PlainOperations, "move", lambda *_: None)
        assert "its logits differ from PyTorch's by" in problem()


def test_kernels_that_do_not_compile_and_graphs_that_are_refused_are_told():
    def refuse(run):
        raise RuntimeError("CUDA error: operation not permitted\nstack")

    def uncompiled(*args):
        raise TypeError("no gcc")

    with played_kernels() as patch:
        assert problem(lambda device: refuse) == "RuntimeError: CUDA error: operation not permitted"
        from trtla.runtime.models.cuda import paged_attention

        patch.setattr(paged_attention, "paged_attend", uncompiled)
        assert problem() == "TypeError: no gcc"


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A machine whose GPU could run the kernels: what their test says, and its calls."""
    said, calls = [None], []

    def tested(*args):
        calls.append(args)
        return said[0]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(cuda_check.VARIABLE, raising=False)
    monkeypatch.setattr(cuda_check, "kernels_problem", lambda *args: None)
    monkeypatch.setattr(cuda_check, "CudaCapture", lambda device: None)
    monkeypatch.setattr(cuda_check, "problem", tested)
    monkeypatch.setattr(cuda_check, "_triton_version", lambda: "3.7.1")
    monkeypatch.setattr(cuda_check, "loaded_driver", lambda: ("550.54.15", "12.4"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    return said, calls, tmp_path


def chosen(dtype=torch.bfloat16, **changes):
    return choose_path(llama().config.model_copy(update=changes), dtype, CUDA)


def test_a_passed_test_is_remembered_for_a_type_and_a_failed_one_is_not(gpu):
    said, calls, _ = gpu
    said[0] = "OutOfResources: shared memory"
    for tries in (1, 2):
        assert not chosen().fast
        assert len(calls) == tries
    assert str(chosen()) == "PyTorch's operations: OutOfResources: shared memory"
    said[0] = None
    assert chosen().fast
    assert chosen().fast
    assert len(calls) == 4
    assert chosen(torch.float16).fast
    assert len(calls) == 5
    assert str(chosen()) == "CUDA graphs, and Triton kernels over pages"


def test_a_broken_note_of_a_passed_test_does_not_count(gpu):
    _, calls, folder = gpu
    assert chosen().fast
    (note,) = (folder / "trtla").glob("cuda-*.json")
    for text in ("", "{", json.dumps({"passed": "yes"})):
        note.write_text(text)
        assert chosen().fast
    assert len(calls) == 4


def test_another_driver_size_or_quantisation_is_tested_again(gpu, monkeypatch):
    _, calls, _ = gpu
    fp8 = Quantization(quant_algo="FP8")
    others = ({}, {"hidden_size": 8192}, {"intermediate_size": 28672}, {"quantization": fp8})
    for tested, changes in enumerate(others, 1):
        for _ in range(2):
            assert chosen(**changes).fast
            assert len(calls) == tested
    for driver in (("560.35.03", "12.4"), ("550.54.15", "12.6"), (None, None)):
        before = len(calls)
        monkeypatch.setattr(cuda_check, "loaded_driver", lambda found=driver: found)
        assert chosen().fast
        assert len(calls) == before + 1


@pytest.mark.parametrize(
    "name", ["layers.py", "kv_cache.py", "llama.py", "tensors.py", "fused.py", "graphs.py"]
)
def test_changed_code_is_tested_again(gpu, monkeypatch, name):
    digest = cuda_check._digest
    assert chosen().fast
    monkeypatch.setattr(
        cuda_check, "_digest", lambda path: "new" if path.name == name else digest(path)
    )
    for _ in range(2):
        assert chosen().fast
    assert len(gpu[1]) == 2


def test_nothing_is_made_on_a_device_where_the_test_has_passed(gpu, monkeypatch):
    assert chosen().fast
    monkeypatch.setattr(cuda_check, "CudaCapture", out_of_memory)
    assert chosen().fast


def test_a_device_that_cannot_capture_is_a_problem():
    with played_kernels():
        assert problem(out_of_memory) == "RuntimeError: CUDA error: out of memory"


def test_a_device_without_memory_for_any_graph_has_not_passed():
    def capture_on(device):
        def refuse(run):
            raise torch.OutOfMemoryError("CUDA out of memory")

        return refuse

    with played_kernels():
        assert problem(capture_on) == "RuntimeError: out of memory: no graph could be captured"


def out_of_memory(device):
    raise RuntimeError("CUDA error: out of memory\nstack")


def test_the_plain_path_can_be_asked_for(gpu, monkeypatch):
    monkeypatch.setenv(cuda_check.VARIABLE, "plain")
    assert str(chosen()) == "PyTorch's operations: TRTLA_CUDA_PATH=plain says so"
    assert gpu[1] == []


def test_an_unknown_path_is_refused(gpu, monkeypatch):
    monkeypatch.setenv(cuda_check.VARIABLE, "plan")
    with pytest.raises(UsageError, match="TRTLA_CUDA_PATH is 'plan'"):
        chosen()


def test_a_triton_that_cannot_be_imported_is_a_problem(gpu, monkeypatch):
    def broken():
        raise ImportError("no libtriton.so\nstack")

    monkeypatch.setattr(cuda_check, "_triton_version", broken)
    assert chosen().problem == "ImportError: no libtriton.so"


def test_a_cpu_has_no_fast_path():
    assert choose_path(llama().config, torch.float32, CPU).problem == "the device is cpu"


@pytest.fixture
def kernels():
    """The kernels' problem, interpreted, for a model with such a quantisation and sizes."""
    pytest.importorskip("triton")

    def found(weights=None, cache=None, dtype=torch.float32, **sizes):
        quantization = Quantization(quant_algo=weights, kv_cache_quant_algo=cache)
        config = llama().config.model_copy(update={"quantization": quantization, **sizes})
        return cuda_check.problem(config, dtype, CPU, fake_capture_on)

    return found


@pytest.mark.deep
@pytest.mark.parametrize("cache", [None, "FP8"])
def test_the_kernels_themselves_pass_interpreted(kernels, cache):
    assert kernels(None, cache) is None


@pytest.mark.deep
def test_the_kernels_themselves_pass_with_windows_interpreted(kernels):
    assert kernels(layer_windows=(9, None)) is None


@pytest.mark.deep
def test_the_kernels_pass_with_all_that_families_do_interpreted(kernels):
    scales = {"embedding_multiplier": 8.0, "residual_multiplier": 0.5, "logits_scaling": 2.0}
    norms = {"qk_layernorm": True, "sandwich_norms": True, "attention_scale": 0.3}
    options = {**scales, **norms, "hidden_act": "gelu_pytorch_tanh"}
    assert kernels(**options, unrotated_layers=(1,)) is None
    local = {"layer_windows": (9, None), "local_rotary_base": 1e3}
    assert kernels(**options, **local, rotary_pct=0.5) is None


# Sizes of their own, and FP8 weights.


@pytest.fixture
def products(monkeypatch):
    """A GPU that multiplies in FP8, played; PyTorch's products on the CPU stand in for its own."""
    if not product_works():
        pytest.skip("this PyTorch has none on the CPU")
    monkeypatch.setattr(cuda_check, "fp8_products", lambda *args: True)
    monkeypatch.setattr(cuda_check, "_CACHED", 9)  # interpreted, every token takes its time


@pytest.mark.deep
@pytest.mark.parametrize(("cache", "dtype"), [(None, torch.float32), ("FP8", torch.float16)])
def test_fp8_weights_pass_interpreted(kernels, products, cache, dtype):
    assert kernels("FP8", cache, dtype, hidden_size=5120, intermediate_size=3000) is None


@pytest.mark.parametrize("operation", ["add_norm", "silu_mul", "rounded"])
def test_wrongly_rounded_inputs_are_found(kernels, products, monkeypatch, operation):
    right = getattr(FusedOperations, operation)

    def wrong(self, *args):
        *numbers, scale = args
        return right(self, *numbers, None if scale is None else scale * 1.2)

    monkeypatch.setattr(FusedOperations, operation, wrong)
    assert "its small operations differ from PyTorch's by" in kernels("FP8")


@pytest.mark.deep
def test_wrong_products_of_rounded_inputs_are_found(kernels, products, monkeypatch):
    right = Fp8Linear.__call__

    def product(self, states):
        return right(self, states) * (2.0 if states.dtype == E4M3 else 1.0)

    monkeypatch.setattr(Fp8Linear, "__call__", product)
    assert "its logits differ from PyTorch's by" in kernels("FP8")


def right_at(**sizes):
    """Whether the operations alone give what PyTorch's give at these sizes."""
    config = llama().config.model_copy(update=sizes)
    return largest_difference(config, torch.float32, CPU, products=False) < 1e-5


@pytest.mark.parametrize(
    ("operation", "size"), [("add_norm", "hidden_size"), ("silu_mul", "intermediate_size")]
)
def test_what_is_wrong_at_the_models_own_size_alone_is_found(kernels, monkeypatch, operation, size):
    right = getattr(FusedOperations, operation)

    def wrong(self, states, *args):
        found = right(self, states, *args)
        last = found if operation == "silu_mul" else found[1]
        last[:, 4096:] = 0.0
        return found

    monkeypatch.setattr(FusedOperations, operation, wrong)
    assert right_at(**{size: 4096})
    assert "its small operations differ from PyTorch's by" in kernels(**{size: 4100})


@pytest.mark.parametrize("cache", [None, "FP8"])
def test_heads_that_only_the_model_has_are_rotated_too(kernels, monkeypatch, cache):
    right = FusedOperations.rotate_write

    def wrong(self, qkv, rotary, slots, store, layer):
        found = right(self, qkv, rotary, slots, store, layer)
        store.layer(layer)[1][slots, 2:] = 0
        return found

    monkeypatch.setattr(FusedOperations, "rotate_write", wrong)
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    assert right_at(num_attention_heads=4, num_key_value_heads=2)
    assert "its small operations differ from PyTorch's by" in kernels(None, cache, **heads)


@pytest.mark.gpu
@pytest.mark.parametrize("weights", [None, "FP8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_kernels_pass_on_a_gpu(dtype, weights):
    quantization = Quantization(quant_algo=weights, kv_cache_quant_algo=weights)
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "quantization": quantization}
    config = llama().config.model_copy(update=sizes)
    if kernels_problem(config, dtype, CUDA) is not None:
        pytest.skip("the GPU has no FP8")
    assert cuda_check.problem(config, dtype, CUDA, CudaCapture) is None
