"""The limits of engines: those that a build plans, and those that a compiled engine must have.

The rules are those of TensorRT-LLM's `build()` (builder.py, _common.py): max_seq_len grows by
max_draft_len, and max_num_tokens covers one generation step of a full batch, but no more than a
full batch can hold. Every correction is described in one sentence.

Compiled engines of trtla and trtllm-build are checked by config.json and file names alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trtla.errors import UsageError, named
from trtla.files import validate
from trtla.formats.config import (
    TOKENS_PER_BLOCK,
    CheckpointConfig,
)
from trtla.formats.engine_config import (
    LOOKAHEAD_DECODING,
    NO_SPECULATION,
    BuildConfig,
    EngineConfig,
)
from trtla.settings.fields import wrong
from trtla.settings.lookahead import (
    AUTOREGRESSIVE,
    DEFAULT_LOOKAHEAD,
    SMALLER_DEFAULTS,
    LookaheadConfig,
    triples_for,
)

_REBUILD = "build it again with trtla build, or with the command of trtla build --dry-run"
_PLAIN = "--no-lookahead builds a plain one"
DEFAULT_INPUT_LEN, DEFAULT_SEQ_LEN = 1024, 2048
DEFAULT_NUM_TOKENS = 8192
"""TensorRT-LLM's BuildConfig default."""
RECOMMENDED_NUM_TOKENS = 16384
"""TensorRT-LLM warns of a larger max_num_tokens (check_max_num_tokens)."""


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """The user's limits, in tokens and sequences; None selects a default that fits the model.

    `max_seq_len` counts prompt and output of one request, without draft tokens. `max_draft_len`
    comes from pasted TensorRT-LLM commands and must agree with the triple.
    """

    lookahead: LookaheadConfig | None = None
    """The triple; None selects the default of torch engines if the limits have room for it, and
    no lookahead for TensorRT-LLM's."""
    max_batch_size: int = 32
    max_input_len: int | None = None
    """Longest prompt; None means max_seq_len, for TensorRT-LLM at most 1024."""
    max_seq_len: int | None = None
    """Longest text; None means 2048, or the model's positions if fewer, or for TensorRT-LLM its
    shortest window."""
    max_num_tokens: int | None = None
    """Most tokens of a step; None means 8192, at least one generation step of a full batch."""
    max_draft_len: int | None = None
    gather_context_logits: bool = False
    """True to return prompt logits, which TensorRT-LLM does in plain engines only."""
    trtllm: tuple[str, ...] = ()
    """Fields of TensorRT-LLM's BuildConfig and PluginConfig as KEY=VALUE."""
    timing_cache: Path | None = None
    """The file of TensorRT's kernel timings, which a build reads and updates."""


class PlannedLimits(NamedTuple):
    """The limits of an engine, and a sentence for each that differs from the request."""

    build_config: BuildConfig
    notes: tuple[str, ...]
    lookahead: LookaheadConfig


def plan_limits(
    settings: BuildSettings, config: CheckpointConfig, backend: str = "torch"
) -> PlannedLimits:
    """Return the limits for the engine's config.json, corrections included.

    TensorRT-LLM's `build()` does not correct them any further.
    """
    _check_sizes(settings)
    triple, why = _triple(settings, backend)
    _check_triple(settings, triple)
    seq_len = _seq_len(settings.max_seq_len, config, backend)
    most = seq_len if backend == "torch" else DEFAULT_INPUT_LEN
    input_len = settings.max_input_len or min(most, seq_len)
    if input_len > seq_len:
        raise UsageError(
            f"max_input_len {input_len} is above max_seq_len {seq_len}",
            "lower --max-input-len, or raise --max-seq-len",
        )
    draft_len = triple.max_draft_len
    most_fed = max(settings.max_num_tokens or 0, DEFAULT_NUM_TOKENS)
    if backend == "torch" and draft_len >= most_fed:
        raise UsageError(
            f"lookahead {triple} feeds {draft_len + 1} tokens in every step of a "
            f"sequence, above {most_fed}",
            "use a smaller --lookahead; 7,7,7 feeds 84 tokens",
        )
    lens = (input_len, seq_len, draft_len)
    num_tokens, notes = _num_tokens(settings, *lens, compiled=backend != "torch")
    data: dict[str, Any] = {
        "max_batch_size": settings.max_batch_size,
        "max_input_len": input_len,
        "max_seq_len": seq_len + draft_len,
        "max_num_tokens": num_tokens,
        "max_draft_len": draft_len,
        "speculative_decoding_mode": LOOKAHEAD_DECODING if draft_len else NO_SPECULATION,
        "kv_cache_type": "PAGED",
        "gather_context_logits": settings.gather_context_logits,
        "plugin_config": {
            "dtype": config.dtype,
            "remove_input_padding": True,
            "paged_kv_cache": True,
            "tokens_per_block": TOKENS_PER_BLOCK,
        },
    }
    build_config = validate(BuildConfig, data, "the build settings")
    return PlannedLimits(build_config, (*why, *notes), triple)


def _triple(settings: BuildSettings, backend: str) -> tuple[LookaheadConfig, list[str]]:
    """Return the requested triple, or the default and a sentence about it."""
    if settings.lookahead is not None:
        return settings.lookahead, []
    if settings.max_draft_len is not None:
        return triples_for(settings.max_draft_len)[0], []
    if backend != "torch":
        return AUTOREGRESSIVE, []
    if settings.gather_context_logits:
        return AUTOREGRESSIVE, ["no lookahead: gather_context_logits does not go with drafts"]
    batch_size, room = settings.max_batch_size, settings.max_num_tokens or DEFAULT_NUM_TOKENS
    for triple in (DEFAULT_LOOKAHEAD, *SMALLER_DEFAULTS):
        if batch_size * triple.max_decoding_tokens <= room:
            break
    else:
        triple = AUTOREGRESSIVE
    rule = f"max_num_tokens {room} for max_batch_size {batch_size}"
    if triple == AUTOREGRESSIVE:
        return triple, [f"no lookahead: {rule} has no room for drafts"]
    if triple != DEFAULT_LOOKAHEAD:
        return triple, [f"lookahead is {triple}, the largest default that fits {rule}"]
    return triple, [f"lookahead {triple} is the default of torch engines; {_PLAIN}"]


def _num_tokens(
    settings: BuildSettings, input_len: int, seq_len: int, draft_len: int, *, compiled: bool
) -> tuple[int, list[str]]:
    """Return max_num_tokens as `build()` corrects it, and a sentence for each correction."""
    batch_size, notes = settings.max_batch_size, list[str]()
    if draft_len:
        limit = f"max_seq_len {seq_len}"
        raised = f"build() raises {limit}" if compiled else f"{limit} is raised"
        notes.append(f"{raised} by max_draft_len {draft_len} to {seq_len + draft_len}")
    step = batch_size * (draft_len + 1)
    drafts = f" x (max_draft_len {draft_len} + 1)" if draft_len else ""
    needs = [(step, f" = max_batch_size {batch_size}{drafts}")]
    num_tokens = settings.max_num_tokens or DEFAULT_NUM_TOKENS
    if compiled:
        full = batch_size * seq_len
        if num_tokens > full:
            rule = f"max_batch_size {batch_size} x max_seq_len {seq_len}"
            notes.append(f"build() lowers max_num_tokens {num_tokens} to {full} = {rule}")
            num_tokens = full
        # Longer prompts than max_num_tokens are refused one by one (trtGptModel.h).
        needs.append((input_len, " = max_input_len: a prompt is read in one step"))
        needs.append((TOKENS_PER_BLOCK, ", one block of the K/V cache"))
    for need, rule in needs:
        if need > num_tokens:
            notes.append(f"max_num_tokens {num_tokens} is raised to {need}{rule}")
            num_tokens = need
    if compiled and num_tokens > RECOMMENDED_NUM_TOKENS:
        notes.append(
            f"max_num_tokens {num_tokens} is above {RECOMMENDED_NUM_TOKENS}, which TensorRT-LLM "
            f"advises against: max_batch_size {batch_size} feeds {step} tokens in a step"
        )
    return num_tokens, notes


def _check_sizes(settings: BuildSettings) -> None:
    for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise wrong(name, value, "at least 1")


def _check_triple(settings: BuildSettings, triple: LookaheadConfig) -> None:
    needed, pasted = triple.max_draft_len, settings.max_draft_len
    if pasted is not None and pasted != needed:
        raise UsageError(
            f"max_draft_len {pasted} disagrees with lookahead {triple}, which needs {needed}",
            "omit --max-draft-len, it is computed, or correct --lookahead",
        )
    if settings.gather_context_logits and needed:
        raise UsageError(
            f"gather_context_logits does not go with lookahead {triple}: TensorRT-LLM "
            "gathers no context logits in engines with draft tokens",
            "omit --gather-context-logits, or build a plain engine with --no-lookahead",
        )


def longest_text(config: CheckpointConfig, backend: str = "torch") -> int:
    """Return the longest text of a model: its positions, or a window that is not applied."""
    return min(config.max_positions, _unapplied(config, backend) or config.max_positions)


def _unapplied(config: CheckpointConfig, backend: str) -> int | None:
    """Return the window that the backend does not apply, so texts must fit it; None if none."""
    return None if backend == "torch" else config.shortest_window


def _seq_len(requested: int | None, config: CheckpointConfig, backend: str) -> int:
    positions, longest = config.max_positions, longest_text(config, backend)
    if requested is None:
        return min(DEFAULT_SEQ_LEN, longest)
    if requested <= longest:
        return requested
    above = f"the model's sliding window {longest}, which TensorRT-LLM's engines do not apply"
    hint = f"use --max-seq-len {longest} or less"
    if requested > positions:
        above = f"the {positions} positions of the model"
    else:
        hint += ", or --backend torch"
    raise UsageError(f"max_seq_len {requested} is above {above}", hint)


def is_compiled(folder: Path) -> bool:
    """Return True if a folder holds an engine of TensorRT-LLM, or one rank of it."""
    return any(folder.glob("rank*.engine"))


def check_compiled(folder: Path, config: EngineConfig) -> None:
    """Refuse an engine that the executor cannot run."""
    for problem in compiled_problems(folder, config):
        raise problem


def compiled_problems(folder: Path, config: EngineConfig) -> Iterator[UsageError]:
    """Yield an error for each key and file that keeps the executor from running an engine."""
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
        yield problem.within(f"{where}: ")


def stage_problems(config: CheckpointConfig, *, lookahead: bool) -> Iterator[UsageError]:
    """Yield the faults of TensorRT-LLM's pipeline stages in generation steps.

    Only the last stage has drafts, positions and masks (decoderBuffers.cpp). C++ pads the
    vocabulary to a multiple of all ranks (gptJsonConfig.cpp), but the model pads it to tp_size's.
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
    """The error for a lookahead engine without trtla.json, whose files name no triple."""
    return UsageError(
        f"{name} does not say its lookahead triple, only max_draft_len {max_draft_len}",
        f"give the triple it was built for with {named('lookahead')}, such as "
        f"{some_triples(max_draft_len)}",
    )


def some_triples(max_draft_len: int) -> str:
    """The most useful triples with this max_draft_len, for a hint."""
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
    needed = ("gpt_attention_plugin", "remove_input_padding")
    off = [name for name in needed if not plugins.get(name)]
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
