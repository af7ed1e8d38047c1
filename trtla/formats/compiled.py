"""What an engine that TensorRT-LLM compiled must have so that trtla can run it.

The same for engines of trtla and of trtllm-build. Only config.json and file names are read, without
torch: a refusal must not wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trtla.errors import UsageError
from trtla.formats.config import (
    LOOKAHEAD_DECODING,
    NO_SPECULATION,
    BuildConfig,
    CheckpointConfig,
    EngineConfig,
)
from trtla.settings.lookahead import triples_for

_REBUILD = "build it again with trtla build, or with the command of trtla build --dry-run"


def is_compiled(folder: Path) -> bool:
    """Whether a folder holds an engine of TensorRT-LLM, if only one rank of it."""
    return any(folder.glob("rank*.engine"))


def check_compiled(folder: Path, config: EngineConfig) -> None:
    """Refuse an engine that the executor cannot run."""
    for problem in compiled_problems(folder, config):
        raise problem


def compiled_problems(folder: Path, config: EngineConfig) -> Iterator[UsageError]:
    """Everything that keeps the executor from running an engine; the key at fault is named."""
    ranks = config.pretrained_config.mapping.world_size
    for rank in range(ranks):
        if not (folder / f"rank{rank}.engine").is_file():
            of = f", one of {ranks} ranks" if ranks > 1 else ""
            yield UsageError(f"{folder} lacks rank{rank}.engine{of}", "copy the engine again")
    where = folder / "config.json"
    for sentence in _wrong_settings(config.build_config):
        yield UsageError(f"{where}: {sentence}", _REBUILD)
    lookahead = config.build_config.max_draft_len > 0
    for problem in stage_problems(config.pretrained_config, lookahead=lookahead):
        yield UsageError(f"{where}: {problem.message}", problem.hint)


def stage_problems(config: CheckpointConfig, *, lookahead: bool) -> Iterator[UsageError]:
    """What TensorRT-LLM gets wrong in pipeline stages, in generation steps.

    Only the last stage has drafts, positions and masks (decoderBuffers.cpp), and C++ pads the
    vocabulary to a multiple of all ranks (gptJsonConfig.cpp), the model to one of tp_size.
    """
    tp, ranks, vocab = config.mapping.tp_size, config.mapping.world_size, config.vocab_size
    if ranks == tp:
        return
    split = "convert with --tp-size instead of --pp-size"
    if lookahead:
        yield UsageError(
            f"lookahead does not go with pp_size {config.mapping.pp_size}: TensorRT-LLM's drafts "
            "and masks never leave the last pipeline stage",
            f"{split}, build a plain engine with --lookahead 1,1,0, or use --backend torch",
        )
    ours, theirs = (-(-vocab // parts) * parts for parts in (tp, ranks))
    if ours != theirs:
        yield UsageError(
            f"vocab_size {vocab} is padded to {ours} for tp_size {tp} and to {theirs} for all "
            f"{ranks} ranks: TensorRT-LLM's C++ reads rows of logits of the second width",
            f"{split}, or use --backend torch",
        )


def unknown_triple(name: str, max_draft_len: int) -> UsageError:
    """The error of a lookahead engine without trtla.json: its files name no triple."""
    return UsageError(
        f"{name} does not say its lookahead triple, only max_draft_len {max_draft_len}",
        f"give the triple it was built for with --lookahead, such as {some_triples(max_draft_len)}",
    )


def some_triples(max_draft_len: int) -> str:
    """The most useful triples that need this max_draft_len, for a hint."""
    return " or ".join(str(triple) for triple in triples_for(max_draft_len)[:3])


def _wrong_settings(limits: BuildConfig) -> Iterator[str]:
    yield from _wrong_speculation(limits)
    if limits.kv_cache_type is None:
        yield (
            "build_config.kv_cache_type is missing, which stands for a continuous K/V cache; "
            "the executor needs PAGED"
        )
    elif limits.kv_cache_type.upper() != "PAGED":
        yield f"build_config.kv_cache_type is {limits.kv_cache_type}, the executor needs PAGED"
    plugins = limits.plugin_config
    off = [
        name for name in ("gpt_attention_plugin", "remove_input_padding") if not plugins.get(name)
    ]
    off += ["paged_kv_cache"] if plugins.get("paged_kv_cache") is False else []
    for name in off:
        yield f"build_config.plugin_config.{name} is off, the executor needs it"


def _wrong_speculation(limits: BuildConfig) -> Iterator[str]:
    mode = limits.speculative_decoding_mode
    if mode not in (NO_SPECULATION, LOOKAHEAD_DECODING):
        yield (
            f"build_config.speculative_decoding_mode is {mode}, neither lookahead "
            f"({LOOKAHEAD_DECODING}) nor none ({NO_SPECULATION})"
        )
    elif limits.max_draft_len and mode == NO_SPECULATION:
        yield (
            f"build_config.max_draft_len is {limits.max_draft_len}, but speculative_decoding_mode "
            f"is {mode}, not lookahead ({LOOKAHEAD_DECODING})"
        )
    if not limits.max_draft_len:
        return
    if limits.max_beam_width != 1:
        yield f"build_config.max_beam_width is {limits.max_beam_width}, lookahead needs 1"
    if limits.gather_context_logits:
        yield "build_config.gather_context_logits is on, which lookahead does not go with"
