"""Engines of the stand-in, built by its own calls or by the command that trtla prints."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.standin import Standin
from trtla.build.engine import describe_build
from trtla.formats.engine_limits import BuildSettings

SERVER = (4, 4, 4)


def drafts_of(triple: Sequence[int]) -> int:
    w, n, g = triple
    return (0 if n == 1 else n - 2) + (w - 1 + g) * (n - 1)


def build(
    standin: Standin,
    checkpoint: Path,
    folder: Path,
    triple: Sequence[int] = SERVER,
    *,
    plugin: dict[str, Any] | None = None,
    **values: Any,
) -> Path:
    """An engine folder; (1,1,0) makes a plain one. Limits: 4 requests, 64 prompt tokens, 128."""
    builder, models = standin.load("builder"), standin.load("models")
    given = {"max_batch_size": 4, "max_input_len": 64, "max_seq_len": 128, **values}
    if drafts_of(triple):
        given = {"speculative_decoding_mode": 8, "max_draft_len": drafts_of(triple), **given}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranks = models.PretrainedConfig.from_checkpoint(checkpoint).mapping.world_size
        for rank in range(ranks):
            config = builder.BuildConfig(**given)
            for name, value in (plugin or {}).items():
                setattr(config.plugin_config, name, value)
            model = models.LLaMAForCausalLM.from_checkpoint(checkpoint, rank=rank)
            builder.build(model, config).save(folder)
    return folder


def reference(checkpoint: Path, prompt: Sequence[int], length: int) -> list[int]:
    """Greedy decoding with transformers, from the rank files and tests.build's own assembly."""
    from tests.support.models import assemble, model_of

    config = json.loads((checkpoint / "config.json").read_text())
    model = model_of(config, {k: v.float() for k, v in assemble(checkpoint).items()})
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(length):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


_OURS_ALONE = ("output_timing_cache",)


def run_printed_command(source: Path, target: Path, settings: BuildSettings) -> Path:
    """Build with the command line of a dry run: the stand-in's trtllm-build, in this process."""
    program, *arguments = printed_command(source, target, settings)
    work = target.parent / "work"  # trtllm-build leaves model.cache where it runs
    work.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        patch.setattr(sys, "argv", [program, *arguments])
        importlib.import_module("tensorrt_llm.commands.build").main()
    return target


def printed_command(source: Path, target: Path, settings: BuildSettings) -> list[str]:
    """The words of the command line, split as a shell does."""
    plan = describe_build(source, settings, output_dir=target, backend="tensorrt-llm")
    (command,) = plan.commands
    return shlex.split(command)


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    for key in _OURS_ALONE:
        config["build_config"].pop(key)
    return config
