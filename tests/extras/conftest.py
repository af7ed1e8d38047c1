"""Fixtures of the core's tests that extras' tests take as well."""

from __future__ import annotations

from tests.support.command_models import (
    articles,
    bare_engine,
    checkpoint,
    engine,
    model,
    no_weights,
)
from trtla.errors import is_installed

if is_installed("torch"):  # which the light installation lacks
    from tests.contract.conftest import fake_gpu, standin, tiny_checkpoint, tiny_model

__all__ = [
    "articles",
    "bare_engine",
    "checkpoint",
    "engine",
    "fake_gpu",
    "model",
    "no_weights",
    "standin",
    "tiny_checkpoint",
    "tiny_model",
]
