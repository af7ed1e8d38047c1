"""Building ranks with TensorRT-LLM: through its Python API, or by command lines to paste.

All arguments for its builder are here, in the order of its commands/build.py. Several ranks are
built by processes of their own, each on its GPU.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

from trtla.errors import TrtlaError, sentence
from trtla.formats.engine_config import BuildConfig
from trtla.formats.families import BY_ARCHITECTURE, spelled
from trtla.formats.gguf.folder import weight_file
from trtla.formats.source import BuildSource
from trtla.settings.trtllm_fields import BUILD
from trtla.trtllm.library import deprecations_once, load, put

PLUGINS = "plugin_config."
TIMING_CACHE = "model.cache"
"""The file that `build()` of rank 0 leaves next to the engine; TensorRT-LLM's name for it."""
_NO_FLAGS = ("opt_batch_size", "strongly_typed", "force_num_profiles", "use_refit", "use_mrope")
"""Fields of BuildConfig that trtllm-build has no flag for."""
_OTHER_FLAGS = {"use_strip_plan": "strip_plan"}
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@dataclass(frozen=True, slots=True)
class RankBuild:
    """The arguments of processes that build ranks: plain data, which a spawned process can
    receive."""

    checkpoint_dir: Path
    engine_dir: Path
    limits: BuildConfig
    dtype: str
    extra: Mapping[str, Any]
    """Fields by the library's own names."""
    timing_cache: Path | None

    def build(self, rank: int, gpu: int) -> None:
        """Build `rank{rank}.engine` on a GPU; rank 0 also writes config.json."""
        import torch

        with contextlib.redirect_stdout(sys.stderr), deprecations_once(silent=gpu > 0):
            torch.cuda.set_device(gpu)
            engine = load("builder").build(self._model(rank), self._build_config())
            if engine is None:
                raise RuntimeError("build() returned no engine")
            engine.save(str(self.engine_dir))

    def _model(self, rank: int) -> Any:
        models = load("models")
        config = models.PretrainedConfig.from_json_file(str(self.checkpoint_dir / "config.json"))
        config.set_rank(rank)
        model_class = models.MODEL_MAP[config.architecture]
        return model_class.from_checkpoint(str(self.checkpoint_dir), config=config)

    def _build_config(self) -> Any:
        """Create the library's BuildConfig, by names that every release from 0.20 to 1.2 has."""
        builder, limits = load("builder"), self.limits
        modes = load("models").SpeculativeDecodingMode
        extra = {name: value for name, value in self.extra.items() if PLUGINS not in name}
        cache = self.timing_cache
        return builder.BuildConfig(
            **{**build_limits(limits, self.extra), **extra},
            max_draft_len=limits.max_draft_len,
            speculative_decoding_mode=(
                modes.LOOKAHEAD_DECODING if limits.max_draft_len else modes.NONE
            ),
            gather_context_logits=limits.gather_context_logits,
            input_timing_cache=str(cache) if cache and cache.is_file() else None,
            # Not "model.cache" in the working directory, which is the default.
            output_timing_cache=str(cache or self.engine_dir / TIMING_CACHE),
            plugin_config=self._plugin_config(),
        )

    def _plugin_config(self) -> Any:
        """Create the PluginConfig, a dataclass up to 1.0, then a pydantic model."""
        config = load("plugin").PluginConfig()
        for name, value in plugin_settings(self.dtype).items():
            setattr(config, name, value)
        # build() derives kv_cache_type PAGED from it. Setting that takes the enumeration of the
        # bindings up to 1.1, and another one later (llmapi/kv_cache_type.py).
        config.paged_kv_cache = True
        for name, value in self.extra.items():
            if name.startswith(PLUGINS):
                put(config, name[len(PLUGINS) :], value, name, BUILD.flag)
        return config


@dataclass(frozen=True, slots=True)
class RankFailure:
    """The reason why a rank was not built; `disk` is the errno if the disk was at fault."""

    rank: int
    message: str
    trace: str
    disk: int | None = None

    def error(self) -> Exception:
        """Convert to an exception, from whichever process it happened in."""
        if self.disk is not None:
            return OSError(self.disk, self.message)
        error = TrtlaError(
            f"TensorRT-LLM cannot build rank {self.rank}: {self.message}",
            "see its log above; --verbose adds the traceback",
        )
        error.__cause__ = RuntimeError(self.trace)
        return error


def build_ranks(build: RankBuild, ranks: int, workers: int) -> None:
    """Build all ranks with up to `workers` processes; a single worker builds in this process."""
    if min(ranks, workers) == 1:
        failure = next(filter(None, (_attempt(build, rank, 0) for rank in range(ranks))), None)
        if failure is not None:
            raise failure.error()
        return
    _run(build, ranks, min(ranks, workers))


def _attempt(build: RankBuild, rank: int, gpu: int) -> RankFailure | None:
    try:
        build.build(rank, gpu)
    except Exception as error:  # TensorRT-LLM raises AssertionError, RuntimeError and others
        number = error.errno if isinstance(error, OSError) else None
        disk = number if number in _DISK else None
        return RankFailure(rank, sentence(error), traceback.format_exc(), disk)
    return None


def _run(build: RankBuild, ranks: int, workers: int) -> None:
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    processes: dict[Connection, BaseProcess] = {}

    try:
        for gpu in range(workers):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(build, range(gpu, ranks, workers), gpu, theirs), daemon=True
            )
            process.start()
            theirs.close()
            processes[ours] = process
        _wait(processes, dict(zip(processes, range(workers), strict=True)))
    finally:
        for started in processes.values():
            started.kill()
            started.join()


def _work(build: RankBuild, ranks: Iterable[int], gpu: int, out: Connection) -> None:
    """Build in a process of its own: report every rank as it begins, and the failure that ends
    it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends this process
    Thread(target=_end_with_parent, daemon=True).start()
    for rank in ranks:
        out.send(rank)
        failure = _attempt(build, rank, gpu)
        if failure is not None:
            out.send(failure)
            return
    out.send(None)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _wait(processes: dict[Connection, BaseProcess], current: dict[Connection, int]) -> None:
    """Read the workers' reports; `current` is the rank that each is building."""
    open_ends = set(processes)
    while open_ends:
        for end in open_ends.intersection(wait(open_ends)):
            try:
                report = end.recv()
            except EOFError:  # killed, or crashed inside the library
                processes[end].join()
                raise TrtlaError(
                    f"TensorRT-LLM cannot build rank {current[end]}: its process ended with exit "
                    f"code {processes[end].exitcode}",
                    "see its log above; a killed process (-9) often ran out of memory: use fewer "
                    "--workers",
                ) from None
            if report is None:
                open_ends.remove(end)
            elif isinstance(report, RankFailure):
                raise report.error()
            else:
                current[end] = report


def build_limits(limits: BuildConfig, extra: Mapping[str, Any]) -> dict[str, object]:
    """Return the limits under the names that flags and BuildConfig share."""
    named: dict[str, object] = {
        "max_batch_size": limits.max_batch_size,
        "max_input_len": limits.max_input_len,
        "max_seq_len": limits.max_text_len,  # build() adds max_draft_len itself
        "max_beam_width": limits.max_beam_width,
        "max_num_tokens": limits.max_num_tokens,
    }
    # The size that TensorRT tunes for: a step of a full batch. Its own default ignores drafts. With
    # several profiles it tunes for several sizes, and refuses this one.
    if not extra.get(f"{PLUGINS}multiple_profiles"):
        named["opt_num_tokens"] = limits.max_batch_size * (limits.max_draft_len + 1)
    return named


def plugin_settings(dtype: str) -> dict[str, str | bool]:
    """Return the fields of TensorRT-LLM's PluginConfig that differ from their defaults.

    Both plugins take the dtype of the activations, also for FP8 checkpoints: quantised products
    bypass the GEMM plugin, the other ones (lm_head) and attention are in this dtype.
    """
    return {
        "gpt_attention_plugin": dtype,
        "gemm_plugin": dtype,
        "remove_input_padding": True,
        "context_fmha": True,
        "use_paged_context_fmha": True,
    }


def command_lines(
    source: BuildSource,
    output_dir: Path,
    limits: BuildConfig,
    workers: int,
    extra: Mapping[str, Any],
    timing_cache: Path | None,
) -> tuple[str, ...]:
    """Return the commands of TensorRT-LLM that build the same engine, quoted for a shell.

    Its own converter reads no GGUF: then the first command is trtla's. Empty if it is impossible:
    it has no program that changes a checkpoint's dtype, and not every field has a flag.
    """
    if any(name in extra for name in _NO_FLAGS):
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
        **build_limits(limits, extra),
    }
    if limits.max_draft_len:
        flags["max_draft_len"] = limits.max_draft_len
        flags["speculative_decoding_mode"] = "lookahead_decoding"
    flags |= {name: _spelled(value) for name, value in plugin_settings(source.config.dtype).items()}
    flags |= {"kv_cache_type": "paged", "workers": workers}
    if timing_cache is not None:
        flags |= {"input_timing_cache": timing_cache} if timing_cache.is_file() else {}
        flags["output_timing_cache"] = timing_cache
    switches = ["gather_context_logits"] if limits.gather_context_logits else []
    for name, value in extra.items():
        flag = name.removeprefix(PLUGINS)
        if flag == name and isinstance(value, bool):
            switches += [_OTHER_FLAGS.get(name, name)] if value else []
        else:
            flags[flag] = _spelled(value)
    shown = _line("trtllm-build", flags)
    return (*commands, " ".join([shown, *(f"--{name}" for name in switches)]))


def _convert(source: BuildSource, checkpoint: Path) -> str:
    file = weight_file(source.folder)
    family = BY_ARCHITECTURE[spelled(source.config.architecture)].trtllm
    script = f"python examples/models/core/{family}/convert_checkpoint.py"
    program, dash = (script, "_") if file is None else ("trtla convert", "-")
    paths = {"model_dir": file or source.folder, "output_dir": checkpoint}
    flags = {name.replace("_", dash): value for name, value in paths.items()}
    return _line(program, {**flags, "dtype": source.config.dtype})


def _spelled(value: object) -> object:
    """Spell on and off, and None, as its programs do."""
    if value is None or isinstance(value, bool):
        return "enable" if value else "disable"
    return value


def _line(program: str, flags: Mapping[str, object]) -> str:
    return " ".join((program, *(f"--{k} {shlex.quote(str(v))}" for k, v in flags.items())))
