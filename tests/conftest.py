"""Settings that all tests share: one thread a process (the models are tiny) and no network."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # subprocesses inherit it
os.environ["HF_HUB_OFFLINE"] = "1"
# What a forward costs is measured and kept: not in the user's cache, nor from there.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="trtla-tests-")

import pytest
import torch
from hypothesis import settings

import trtla
from trtla.trtllm_library import installed

torch.set_num_threads(1)
settings.register_profile("trtla", deadline=None, print_blob=True)
settings.load_profile("trtla")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA device or TensorRT-LLM where they are not."""
    cuda = torch.cuda.is_available()
    for item in items:
        if item.get_closest_marker("gpu") and not cuda:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("trtllm") and not (cuda and installed()):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device and TensorRT-LLM"))


@pytest.fixture(scope="session")
def tiny_llama() -> Path:
    """The folder of the shipped model."""
    return Path(trtla.__file__).parent / "assets" / "tiny-llama"
