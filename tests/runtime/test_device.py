"""Which device a name means, and how PyTorch is set up for one; GPUs are played."""

from __future__ import annotations

import pytest
import torch

from tests.support.encoder_decoders import folder
from trtla.errors import UsageError
from trtla.formats.engine import open_encoder_decoder
from trtla.formats.engine_limits import BuildSettings
from trtla.runtime import device
from trtla.runtime.device import CPU, Device, resolve_device
from trtla.runtime.models.load import load_engine
from trtla.settings.lookahead import AUTOREGRESSIVE

CUDA = Device("cuda", 0)


@pytest.fixture
def gpus(monkeypatch):
    """Two, of which this thread uses the second."""
    monkeypatch.setattr(device, "loaded_driver", lambda: ("580", "13.0"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.mark.parametrize(
    ("name", "index"), [("auto", 1), ("cuda", 1), ("cuda:0", 0), ("cuda:1", 1)]
)
def test_a_gpu_is_named_with_its_number(gpus, name, index):
    assert resolve_device(name) == Device("cuda", index)


def test_a_gpu_that_is_not_there_is_refused(gpus):
    with pytest.raises(UsageError, match="'cuda:2' is not available: PyTorch sees 2 GPUs"):
        resolve_device("cuda:2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_cpu_is_taken_and_cuda_refused():
    assert resolve_device("auto") == resolve_device("cpu") == CPU
    with pytest.raises(UsageError, match="'cuda' is not available: PyTorch sees 0 GPUs"):
        resolve_device("cuda")


@pytest.fixture
def cudnn():
    """Whether cuDNN's attention may run, as when PyTorch is imported."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield torch.backends.cuda.cudnn_sdp_enabled
    torch.backends.cuda.enable_cudnn_sdp(True)


def tried(load):
    """A model is loaded; without a GPU that fails after PyTorch is set up."""
    if torch.cuda.is_available():
        load()
        return
    with pytest.raises((AssertionError, RuntimeError)):
        load()


@pytest.mark.parametrize("kind", ["T5", "UMT5"])
def test_encoder_decoders_do_without_cudnns_attention(cudnn, kind):
    engine = open_encoder_decoder(folder(kind), BuildSettings(AUTOREGRESSIVE))
    load_engine(engine, "float32", CPU)
    assert cudnn()
    tried(lambda: load_engine(engine, "float32", CUDA))
    assert not cudnn()
