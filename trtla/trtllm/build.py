"""TensorRT-LLM engines: built from a checkpoint, one per rank, or adopted from trtllm-build.

Other models are first converted to a checkpoint, inside the output folder. The config.json that
TensorRT-LLM wrote is then compared with the plan.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtla.console import counted
from trtla.errors import TrtlaError, UsageError
from trtla.files import json_text, write_json, write_whole
from trtla.formats.atomic import os_failure
from trtla.formats.checkpoint import Progress, write_ranks
from trtla.formats.config import CheckpointConfig
from trtla.formats.engine import (
    MANIFEST,
    Engine,
    check_is_engine,
    new_manifest,
    open_engine,
    read_engine,
)
from trtla.formats.engine_config import BuildConfig, EngineManifest
from trtla.formats.engine_limits import BuildSettings, check_compiled, some_triples, unknown_triple
from trtla.formats.folder import copy_side_files, tokenizer_dir
from trtla.formats.model_folder import ModelFolder
from trtla.formats.source import EngineBuild, config_json
from trtla.machine import package_version
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.trtllm_fields import BUILD, Kinds, read
from trtla.trtllm.library import (
    installed,
    installed_version,
    load,
    plain_fields,
    put,
    require_backend,
)
from trtla.trtllm.rank_builds import PLUGINS, TIMING_CACHE, RankBuild, build_ranks
from trtla.trtllm.rules import gpu_capability, show
from trtla.version import __version__

_PLANNED = (
    "max_draft_len",
    "max_batch_size",
    "max_beam_width",
    "max_input_len",
    "max_seq_len",
    "max_num_tokens",
    "speculative_decoding_mode",
    "gather_context_logits",
)


def read_builder_fields(settings: BuildSettings, backend: str) -> dict[str, Any]:
    """Read the fields in --trtllm, checked as far as possible without the library."""
    choices = {"--trtllm": settings.trtllm, "--timing-cache": settings.timing_cache}
    flags = " and ".join(flag for flag, value in choices.items() if value)
    if flags and backend != "tensorrt-llm":
        raise UsageError(
            f"{flags} is for TensorRT-LLM, and the backend is {backend}",
            f"omit {flags}, or use --backend tensorrt-llm",
        )
    return read(BUILD, settings.trtllm, _build_kinds)


def check_machine(workers: int, extra: Mapping[str, Any]) -> None:
    """Refuse a machine that cannot build, before anything is written."""
    require_backend()
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        raise UsageError(
            "TensorRT-LLM builds on a GPU, and PyTorch sees none here", "use --backend torch"
        )
    if workers > gpus:
        raise UsageError(
            f"workers {workers} are more than the {counted(gpus, 'GPU')} here",
            f"use --workers {gpus}: every worker has a GPU of its own",
        )
    _check_extra(extra)


def write_compiled(
    build: EngineBuild, folder: Path, workers: int, progress: Progress | None = None
) -> None:
    """Write all files of a compiled engine into an existing folder."""
    config = build.source.config
    ranks = config.mapping.world_size
    with _checkpoint(build, folder, progress) as checkpoint:
        extra = build.trtllm, build.settings.timing_cache
        build_ranks(
            RankBuild(checkpoint, folder, build.limits, config.dtype, *extra), ranks, workers
        )
        sha256 = folder_digest(checkpoint, ranks, "safetensors")
    (folder / TIMING_CACHE).unlink(missing_ok=True)
    check_written(folder, build.limits, config, build.trtllm)
    copy_side_files(build.source.folder, folder)
    capability = gpu_capability()
    machine = installed_version(), show(capability) if capability else None
    manifest = new_manifest("tensorrt-llm", build, sha256, *machine)
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))


@contextmanager
def _checkpoint(build: EngineBuild, folder: Path, progress: Progress | None) -> Iterator[Path]:
    """Yield the source itself, or a temporary checkpoint made of it."""
    if build.source.is_checkpoint:
        yield build.source.folder
        return
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    try:
        write_ranks(checkpoint, build.source.config, build.tensors, progress)
        write_json(checkpoint / "config.json", config_json(build.source.config))
        yield checkpoint
    finally:
        shutil.rmtree(checkpoint)


def folder_digest(folder: Path, ranks: int, suffix: str) -> str:
    """Return the SHA-256 over the bytes of config.json and the rank files."""
    digest = hashlib.sha256()
    for name in ("config.json", *(f"rank{rank}.{suffix}" for rank in range(ranks))):
        with (folder / name).open("rb") as file:
            while piece := file.read(2**22):
                digest.update(piece)
    return digest.hexdigest()


def check_written(
    folder: Path,
    planned: BuildConfig,
    config: CheckpointConfig,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Compare the config that TensorRT-LLM wrote with the plan, except for fields in `extra`."""
    written = read_engine(folder, manifest=False).config.build_config
    wanted = {name: getattr(planned, name) for name in _PLANNED}
    actual = {name: getattr(written, name) for name in _PLANNED}
    wanted["kv_cache_type"], actual["kv_cache_type"] = "PAGED", str(written.kv_cache_type).upper()
    plugins = {"gpt_attention_plugin": config.dtype, "gemm_plugin": config.dtype}
    for name, value in {**plugins, "remove_input_padding": True, "paged_kv_cache": True}.items():
        wanted[f"plugin_config.{name}"] = value
        actual[f"plugin_config.{name}"] = written.plugin_config.get(name)
    for name, value in wanted.items():
        if actual[name] != value and name not in (extra or {}):
            raise TrtlaError(
                f"TensorRT-LLM wrote {name} {actual[name]} into the engine, planned was {value}",
                "this release corrects settings in a way that is new to trtla: report it",
            )
    for rank in range(config.mapping.world_size):
        if not (folder / f"rank{rank}.engine").is_file():
            raise TrtlaError(
                f"TensorRT-LLM wrote no rank{rank}.engine", "its log above may say why"
            )


def adopt_engine(
    engine_dir: str | Path,
    lookahead: LookaheadConfig | None,
    *,
    tokenizer: str | Path | None = None,
    force: bool = False,
    sources: dict[str, str] | None = None,
) -> Engine:
    """Write trtla.json, and copy the tokenizer files, into an engine that trtllm-build made.

    `lookahead` is the triple it was built for, None for a plain engine; `tokenizer` a folder with
    the files to copy; `sources` says where each setting came from.
    """
    folder = Path(engine_dir)
    engine = _foreign_engine(folder, force)
    triple = lookahead or engine.lookahead
    needed = engine.config.build_config.max_draft_len
    if triple is None:
        raise unknown_triple(engine.name, needed)
    if triple.max_draft_len != needed:
        raise UsageError(
            f"lookahead {triple} needs max_draft_len {triple.max_draft_len}, "
            f"but {engine.name} was built with {needed}",
            f"give the triple it was built for, such as {some_triples(needed)}",
        )
    if tokenizer is not None and tokenizer_dir(Path(tokenizer)) is None:
        raise UsageError(f"{tokenizer} has no tokenizer files", "give the folder of the model")
    config, ranks = engine.config, engine.config.pretrained_config.mapping.world_size
    manifest = EngineManifest(
        backend="tensorrt-llm",
        lookahead=triple.as_tuple(),
        dtype=config.pretrained_config.dtype,
        trtla_version=__version__,
        torch_version=package_version("torch"),
        tensorrt_llm_version=config.version,
        source="trtllm-build",
        source_sha256=folder_digest(folder, ranks, "engine"),
        settings=sources or {},
    )
    try:
        if tokenizer is not None:
            copy_side_files(Path(tokenizer), folder)
        write_whole(folder / MANIFEST, json_text(manifest.model_dump(mode="json")))
    except OSError as error:
        raise os_failure(error, folder) from None
    return open_engine(folder)


def _foreign_engine(folder: Path, force: bool) -> Engine:
    """Read the engine without its manifest, after every check."""
    model_folder = ModelFolder(folder)
    check_is_engine(model_folder)
    engine = read_engine(model_folder, manifest=False)
    if engine.backend != "tensorrt-llm":
        raise UsageError(
            f"{folder} holds no engine of TensorRT-LLM (rank0.engine)",
            "give a folder that trtllm-build wrote",
        )
    if (folder / MANIFEST).exists() and not force:
        raise UsageError(
            f"{folder} has a {MANIFEST} already, which names its triple",
            "run it as it is, or add --force to write another one",
        )
    check_compiled(folder, engine.config)
    return engine


def _build_kinds() -> Kinds:
    """Return the fields of BuildConfig and PluginConfig; empty without the library."""
    if not installed():
        return {}
    config, plugins = load("builder").BuildConfig(), load("plugin").PluginConfig()
    return {**dict(plain_fields(config)), **dict(plain_fields(plugins, PLUGINS))}


def _check_extra(extra: Mapping[str, Any]) -> None:
    """Check that this release's builder has these fields.

    A pydantic BuildConfig would silently drop unknown ones.
    """
    if not extra:
        return
    config, plugins = load("builder").BuildConfig(), load("plugin").PluginConfig()
    for name, value in extra.items():
        inside = name.startswith(PLUGINS)
        put(plugins if inside else config, name.removeprefix(PLUGINS), value, name, BUILD.flag)
