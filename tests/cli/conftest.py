"""The command line on a tiny random Llama with a byte tokenizer; one engine for the session."""

from __future__ import annotations

from tests.support.command_models import (
    articles,
    bare_engine,
    checkpoint,
    engine,
    model,
    no_weights,
)

__all__ = ["articles", "bare_engine", "checkpoint", "engine", "model", "no_weights"]
