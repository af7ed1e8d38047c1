"""The model of the FP8 tests and its checkpoints, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fp8_models import BIASED, to_fp8
from tests.support.models import make_model, save_model


@pytest.fixture(scope="session")
def biased_hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model(BIASED), BIASED, tmp_path_factory.mktemp("fp8") / "hf")


@pytest.fixture(scope="session")
def biased_fp8(biased_hf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return to_fp8(biased_hf, tmp_path_factory.mktemp("fp8") / "ckpt", fp8_kv_cache=True)


@pytest.fixture(scope="session")
def biased_fp8_split(biased_hf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("fp8") / "ckpt"
    return to_fp8(biased_hf, target, fp8_kv_cache=True, tp_size=2, pp_size=2)
