"""Makes an engine of trtllm-build one of trtla's, by adding files and changing none.

They are trtla.json with the lookahead triple, of which the engine itself has only max_draft_len,
and the tokenizer files.
"""

from __future__ import annotations

from pathlib import Path

import torch

from trtla.errors import UsageError
from trtla.files import json_text, write_whole
from trtla.formats.atomic import os_failure
from trtla.formats.compiled import check_compiled, some_triples, unknown_triple
from trtla.formats.config import EngineManifest
from trtla.formats.engine import MANIFEST, Engine, check_is_engine, open_engine, read_engine
from trtla.formats.folder import copy_side_files, tokenizer_dir
from trtla.settings.lookahead import LookaheadConfig
from trtla.trtllm.build import folder_digest
from trtla.version import __version__


def adopt_engine(
    engine_dir: str | Path,
    lookahead: LookaheadConfig | None,
    *,
    tokenizer: str | Path | None = None,
    force: bool = False,
    sources: dict[str, str] | None = None,
) -> Engine:
    """Write trtla.json, and copy the tokenizer files, into an engine that trtllm-build made.

    Args:
        engine_dir: the engine.
        lookahead: the triple it was built for; None for a plain engine.
        tokenizer: a folder with the tokenizer files to copy.
        force: replace a trtla.json that is there.
        sources: where each setting came from, kept in trtla.json.

    Raises:
        UsageError: no such engine, one that trtla cannot run, or one that needs another triple.
        TrtlaError: the disk is full, or permission is missing.
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
    manifest = _manifest(engine, triple, dict(sources or {}))
    try:
        if tokenizer is not None:
            copy_side_files(Path(tokenizer), folder)
        write_whole(folder / MANIFEST, json_text(manifest.model_dump(mode="json")))
    except OSError as error:
        raise os_failure(error, folder) from None
    return open_engine(folder)


def _foreign_engine(folder: Path, force: bool) -> Engine:
    """The engine without its manifest, after every check."""
    check_is_engine(folder)
    if (folder / MANIFEST).exists() and not force:
        raise UsageError(
            f"{folder} has a {MANIFEST} already, which names its triple",
            "run it as it is, or add --force to write another one",
        )
    engine = read_engine(folder, manifest=False)
    if engine.backend != "tensorrt-llm":
        raise UsageError(
            f"{folder} holds no engine of TensorRT-LLM (rank0.engine)",
            "give a folder that trtllm-build wrote",
        )
    check_compiled(folder, engine.config)
    return engine


def _manifest(engine: Engine, triple: LookaheadConfig, settings: dict[str, str]) -> EngineManifest:
    ranks = engine.config.pretrained_config.mapping.world_size
    return EngineManifest(
        backend="tensorrt-llm",
        lookahead=triple.as_tuple(),
        dtype=engine.config.pretrained_config.dtype,
        trtla_version=__version__,
        torch_version=torch.__version__,
        tensorrt_llm_version=engine.config.version,
        source="trtllm-build",
        source_sha256=folder_digest(engine.path, ranks, "engine"),
        settings=settings,
    )
