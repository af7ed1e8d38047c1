"""Which path a model takes on CUDA: what a GPU would say is played, the test model really runs."""

from __future__ import annotations

import json

import pytest
import torch

from tests.runtime.paged import CPU
from tests.runtime.test_step_inputs import fake_capture, llama, reference_attention
from trtla.errors import UsageError
from trtla.formats.config import Quantization
from trtla.runtime.models.cuda import path as path_module
from trtla.runtime.models.cuda import self_test
from trtla.runtime.models.cuda.capture import CudaCapture
from trtla.runtime.models.cuda.path import choose_path

CUDA = torch.device("cuda")


def problem(capture=fake_capture):
    return self_test.problem(llama().config, torch.float32, CPU, capture)


def test_what_gives_the_same_numbers_passes():
    with reference_attention():
        assert problem() is None
        assert problem(capture=None) is None


@pytest.mark.parametrize("wrong", [0.0, 1.05, float("nan")])
def test_wrong_numbers_are_found(monkeypatch, wrong):
    with reference_attention() as patch:
        from trtla.runtime.models.cuda import paged_attention

        attend = paged_attention.paged_attend
        patch.setattr(paged_attention, "paged_attend", lambda *args: attend(*args) * wrong)
        assert "its logits differ from PyTorch's by" in problem()


def test_kernels_that_do_not_compile_and_graphs_that_are_refused_are_told():
    def refuse(run):
        raise RuntimeError("CUDA error: operation not permitted\nstack")

    def uncompiled(*args):
        raise TypeError("no gcc")

    with reference_attention() as patch:
        assert problem(refuse) == "RuntimeError: CUDA error: operation not permitted"
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
    monkeypatch.delenv(path_module.VARIABLE, raising=False)
    monkeypatch.setattr(path_module, "fused_problem", lambda *args: None)
    monkeypatch.setattr(path_module, "CudaCapture", lambda device: None)
    monkeypatch.setattr(self_test, "problem", tested)
    monkeypatch.setattr(self_test, "_triton_version", lambda: "3.7.1")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    return said, calls, tmp_path


def chosen(dtype=torch.bfloat16):
    return choose_path(llama().config, dtype, CUDA)


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


def test_the_plain_path_can_be_asked_for(gpu, monkeypatch):
    monkeypatch.setenv(path_module.VARIABLE, "plain")
    assert str(chosen()) == "PyTorch's operations: TRTLA_CUDA_PATH=plain says so"
    assert gpu[1] == []


def test_an_unknown_path_is_refused(gpu, monkeypatch):
    monkeypatch.setenv(path_module.VARIABLE, "plan")
    with pytest.raises(UsageError, match="TRTLA_CUDA_PATH is 'plan'"):
        chosen()


def test_a_triton_that_cannot_be_imported_is_a_problem(gpu, monkeypatch):
    def broken():
        raise ImportError("no libtriton.so\nstack")

    monkeypatch.setattr(self_test, "_triton_version", broken)
    assert chosen().problem == "ImportError: no libtriton.so"


def test_a_cpu_has_no_fast_path():
    assert choose_path(llama().config, torch.float32, CPU).problem == "the device is cpu"


@pytest.mark.parametrize("cache", [None, "FP8"])
def test_the_kernels_themselves_pass_interpreted(cache):
    pytest.importorskip("triton")
    quantization = Quantization(kv_cache_quant_algo=cache)
    config = llama().config.model_copy(update={"quantization": quantization})
    assert self_test.problem(config, torch.float32, CPU, fake_capture) is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_kernels_pass_on_a_gpu(dtype):
    assert self_test.problem(llama().config, dtype, CUDA, CudaCapture(CUDA)) is None
