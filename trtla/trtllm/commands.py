"""The command lines that build the same engine with TensorRT-LLM alone, to paste."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtla.formats.config import QWEN2, BuildConfig
from trtla.formats.gguf.folder import weight_file
from trtla.formats.source import BuildSource
from trtla.trtllm.library_fields import PLUGINS
from trtla.trtllm.ranks import build_limits, plugin_settings

CONVERT_SCRIPT = "examples/models/core/{}/convert_checkpoint.py"
"""In TensorRT-LLM's repository, by the folder of the family."""
_NO_FLAGS = ("opt_batch_size", "strongly_typed", "force_num_profiles", "use_refit", "use_mrope")
"""Fields of BuildConfig that trtllm-build has no flag for."""
_OTHER_FLAGS = {"use_strip_plan": "strip_plan"}


def command_lines(
    source: BuildSource,
    output_dir: Path,
    limits: BuildConfig,
    workers: int = 1,
    asked: Mapping[str, Any] | None = None,
    timing_cache: Path | None = None,
) -> tuple[str, ...]:
    """The commands of TensorRT-LLM that build the same engine, quoted for a shell.

    Its own converter reads no GGUF: there the first command is trtla's. Empty where it cannot be
    done: it has no program that changes a checkpoint's dtype, and not every field has a flag.
    """
    asked = asked or {}
    if any(name in asked for name in _NO_FLAGS):
        return ()
    checkpoint, commands = source.folder, []
    if not source.is_checkpoint:
        if source.kind == "checkpoint":
            return ()
        checkpoint = output_dir.parent / f"{output_dir.name or 'engine'}-checkpoint"
        commands.append(_convert(source, checkpoint))
    flags: dict[str, object] = {
        "checkpoint_dir": checkpoint,
        "output_dir": output_dir,
        **build_limits(limits, asked),
    }
    if limits.max_draft_len:
        flags["max_draft_len"] = limits.max_draft_len
        flags["speculative_decoding_mode"] = "lookahead_decoding"
    flags |= {name: _spelled(value) for name, value in plugin_settings(source.config.dtype).items()}
    flags |= {"kv_cache_type": "paged", "workers": workers}
    flags |= _cache_flags(timing_cache)
    switches = ["gather_context_logits"] if limits.gather_context_logits else []
    for name, value in asked.items():
        flag = name.removeprefix(PLUGINS)
        if flag == name and isinstance(value, bool):
            switches += [_OTHER_FLAGS.get(name, name)] if value else []
        else:
            flags[flag] = _spelled(value)
    shown = _line("trtllm-build", flags)
    return (*commands, " ".join([shown, *(f"--{name}" for name in switches)]))


def _convert(source: BuildSource, checkpoint: Path) -> str:
    """Model to checkpoint."""
    file = weight_file(source.folder)
    if file is not None:
        given = {"model-dir": file, "output-dir": checkpoint, "dtype": source.config.dtype}
        return _line("trtla convert", given)
    family = "qwen" if source.config.architecture == QWEN2 else "llama"
    given = {"model_dir": source.folder, "output_dir": checkpoint, "dtype": source.config.dtype}
    return _line(f"python {CONVERT_SCRIPT.format(family)}", given)


def _cache_flags(timing_cache: Path | None) -> dict[str, object]:
    if timing_cache is None:
        return {}
    read = {"input_timing_cache": timing_cache} if timing_cache.is_file() else {}
    return {**read, "output_timing_cache": timing_cache}


def _spelled(value: object) -> object:
    """On and off are words there, and so is nothing."""
    if value is None or isinstance(value, bool):
        return "enable" if value else "disable"
    return value


def _line(program: str, flags: Mapping[str, object]) -> str:
    return " ".join((program, *(f"--{k} {shlex.quote(str(v))}" for k, v in flags.items())))
