"""One rank's engine through TensorRT-LLM's Python API, in the order of its commands/build.py.

Everything that the library's classes are called with is here; what is built and where it goes is
decided in trtla.trtllm.build.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import shlex
import signal
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from trtla.errors import TrtlaError, sentence
from trtla.formats.config import BuildConfig
from trtla.formats.source import BuildSource
from trtla.trtllm.library import deprecations_once, load

TIMING_CACHE = "model.cache"
"""What `build()` of rank 0 leaves beside the engine; TensorRT-LLM's name for it."""


@dataclass(frozen=True, slots=True)
class RankBuild:
    """All that a process needs to build ranks: plain data, so that a spawned one can have it."""

    checkpoint_dir: Path
    engine_dir: Path
    limits: BuildConfig
    dtype: str

    def build(self, rank: int, gpu: int) -> None:
        """Build `rank{rank}.engine` on a GPU; rank 0 also writes config.json.

        Raises:
            Exception: whatever TensorRT-LLM raises.
        """
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
        """The library's BuildConfig, by names that every release from 0.20 to 1.2 has."""
        builder, limits = load("builder"), self.limits
        modes = load("models").SpeculativeDecodingMode
        return builder.BuildConfig(
            max_input_len=limits.max_input_len,
            max_seq_len=limits.max_text_len,  # build() adds max_draft_len itself
            max_batch_size=limits.max_batch_size,
            max_beam_width=limits.max_beam_width,
            max_num_tokens=limits.max_num_tokens,
            opt_num_tokens=opt_num_tokens(limits),
            max_draft_len=limits.max_draft_len,
            speculative_decoding_mode=(
                modes.LOOKAHEAD_DECODING if limits.max_draft_len else modes.NONE
            ),
            gather_context_logits=limits.gather_context_logits,
            # Not "model.cache" in the working directory, which is the default.
            output_timing_cache=str(self.engine_dir / TIMING_CACHE),
            plugin_config=self._plugin_config(),
        )

    def _plugin_config(self) -> Any:
        """A dataclass up to 1.0 and a pydantic model from 1.1 on: both take assignments."""
        config = load("plugin").PluginConfig()
        for name, value in plugin_settings(self.dtype).items():
            setattr(config, name, value)
        # build() makes kv_cache_type PAGED of it. That itself has one enumeration up to 1.1, that
        # of the bindings, and another one later (llmapi/kv_cache_type.py).
        config.paged_kv_cache = True
        return config


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rank was not built; `disk` is the errno where the disk was at fault."""

    rank: int
    said: str
    trace: str
    disk: int | None = None

    def error(self) -> Exception:
        """As an exception, whichever process it came from."""
        if self.disk is not None:
            return OSError(self.disk, self.said)
        error = TrtlaError(
            f"TensorRT-LLM cannot build rank {self.rank}: {self.said}",
            "its log above tells more; --verbose adds the traceback",
        )
        error.__cause__ = RuntimeError(self.trace)
        return error


def build_ranks(build: RankBuild, ranks: int, workers: int) -> None:
    """Build all ranks with up to `workers` processes; one builds in this process.

    Raises:
        TrtlaError: a rank could not be built; it is named.
        OSError: a rank could not be written.
    """
    if min(ranks, workers) == 1:
        failure = next(filter(None, (_attempt(build, rank, 0) for rank in range(ranks))), None)
        if failure is not None:
            raise failure.error()
        return
    _run(build, ranks, min(ranks, workers))


def _attempt(build: RankBuild, rank: int, gpu: int) -> Failure | None:
    try:
        build.build(rank, gpu)
    except Exception as error:  # TensorRT-LLM raises AssertionError, RuntimeError and others
        number = error.errno if isinstance(error, OSError) else None
        disk = number if number in _DISK else None
        return Failure(rank, sentence(error), traceback.format_exc(), disk)
    return None


def _run(build: RankBuild, ranks: int, workers: int) -> None:
    """Start the workers and wait until all have ended, or one has failed."""
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
    """In a process of its own: tell every rank as it begins, and the failure that ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends this process
    for rank in ranks:
        out.send(rank)
        failure = _attempt(build, rank, gpu)
        if failure is not None:
            out.send(failure)
            return
    out.send(None)


def _wait(processes: dict[Connection, BaseProcess], current: dict[Connection, int]) -> None:
    """Read what the workers tell; `current` is the rank that each is at."""
    open_ends = set(processes)
    while open_ends:
        for end in open_ends.intersection(wait(open_ends)):
            try:
                told = end.recv()
            except EOFError:  # killed, or crashed inside the library
                raise _died(processes[end], current[end]) from None
            if told is None:
                open_ends.remove(end)
            elif isinstance(told, Failure):
                raise told.error()
            else:
                current[end] = told


def _died(process: BaseProcess, rank: int) -> TrtlaError:
    process.join()
    return TrtlaError(
        f"TensorRT-LLM cannot build rank {rank}: its process ended with exit code "
        f"{process.exitcode}",
        "its log above tells more; a killed process (-9) often ran out of memory: use fewer "
        "--workers",
    )


CONVERT_SCRIPT = "examples/models/core/llama/convert_checkpoint.py"
"""In TensorRT-LLM's repository."""


@dataclass(frozen=True, slots=True)
class TrtllmCommand:
    """What the command lines depend on."""

    source: BuildSource
    output_dir: Path
    limits: BuildConfig
    workers: int = 1

    def lines(self) -> tuple[str, ...]:
        """The command lines, one after the other, quoted for a shell.

        Empty where TensorRT-LLM cannot do it: it has no program that changes a checkpoint's dtype.
        """
        if self.source.is_checkpoint:
            return (_line(self._build(self.source.folder)),)
        if self.source.kind == "checkpoint":
            return ()
        name = self.output_dir.name or "engine"
        checkpoint = self.output_dir.parent / f"{name}-checkpoint"
        return (_line(self._convert(checkpoint)), _line(self._build(checkpoint)))

    def _convert(self, checkpoint: Path) -> list[str]:
        return [
            *("python", CONVERT_SCRIPT),
            *("--model_dir", str(self.source.folder)),
            *("--output_dir", str(checkpoint)),
            *("--dtype", self.source.config.dtype),
        ]

    def _build(self, checkpoint: Path) -> list[str]:
        limits = self.limits
        flags: dict[str, object] = {
            "checkpoint_dir": checkpoint,
            "output_dir": self.output_dir,
            "max_batch_size": limits.max_batch_size,
            "max_input_len": limits.max_input_len,
            "max_seq_len": limits.max_text_len,  # build() adds max_draft_len itself
            "max_beam_width": limits.max_beam_width,
            "max_num_tokens": limits.max_num_tokens,
            "opt_num_tokens": opt_num_tokens(limits),
            **self._speculation(),
            **_flag_values(plugin_settings(self.source.config.dtype)),
            "kv_cache_type": "paged",
            "workers": self.workers,
        }
        pairs = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
        gather = ["--gather_context_logits"] if limits.gather_context_logits else []
        return ["trtllm-build", *pairs, *gather]

    def _speculation(self) -> dict[str, object]:
        if not self.limits.max_draft_len:
            return {}
        return {
            "max_draft_len": self.limits.max_draft_len,
            "speculative_decoding_mode": "lookahead_decoding",
        }


def opt_num_tokens(limits: BuildConfig) -> int:
    """What TensorRT tunes for: a step of a full batch. Its own default does not count drafts."""
    return limits.max_batch_size * (limits.max_draft_len + 1)


def plugin_settings(dtype: str) -> dict[str, str | bool]:
    """The fields of TensorRT-LLM's PluginConfig that are not left at their default.

    Both plugins take the dtype of the activations, also for FP8 checkpoints: those products that
    are quantised pass the GEMM plugin by, the other ones (lm_head) and attention are in this dtype.
    """
    return {
        "gpt_attention_plugin": dtype,
        "gemm_plugin": dtype,
        "remove_input_padding": True,
        "context_fmha": True,
        "use_paged_context_fmha": True,
    }


def _flag_values(settings: dict[str, str | bool]) -> dict[str, object]:
    words = {True: "enable", False: "disable"}
    return {
        name: words[value] if isinstance(value, bool) else value for name, value in settings.items()
    }


def _line(parts: list[str]) -> str:
    return " ".join(shlex.quote(part) for part in parts)
