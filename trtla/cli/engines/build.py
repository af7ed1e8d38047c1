"""`trtla build`: an engine from a checkpoint, a Hugging Face folder or a GGUF file.

With --from-existing it adds trtla's files to an engine that trtllm-build made.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.engines.build_output import show_kind, show_plan, show_written
from trtla.cli.shared.command import Command
from trtla.cli.shared.options import (
    DTYPES,
    MODEL,
    PATH,
    json_flag,
    model_flag,
    setting,
    several,
    switch,
)
from trtla.cli.shared.params import Given
from trtla.cli.shared.upstream import trtllm_settings, upstream_values
from trtla.cli.shared.values import COUNT, TEXT, TOKENS, TRIPLE
from trtla.console import Console
from trtla.errors import UsageError
from trtla.settings.lookahead import (
    AUTOREGRESSIVE,
    DEFAULT_LOOKAHEAD,
    LookaheadConfig,
    triples_for,
)
from trtla.settings.upstream.programs import BUILD

if TYPE_CHECKING:
    pass

_LIMITS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_draft_len")
_BUILD_ONLY = (
    *("checkpoint_dir", "output_dir", *_LIMITS, "gather_context_logits"),
    *("backend", "dtype", "workers", "dry_run", "trtllm", "timing_cache", "no_lookahead", "head"),
)
_SETTINGS = (*_LIMITS, "lookahead", "gather_context_logits", "backend", "dtype", "trtllm")


@click.command(
    cls=Command,
    instead_of=BUILD,
    short_help="Checkpoint, Hugging Face folder or GGUF file -> engine.",
    examples=[
        "trtla build ckpt -o engine --lookahead 7,7,7",
        "trtla build model.gguf -o engine",
        "trtla build ckpt -o engine --config configs/llama-8b.yaml",
        "trtla build ckpt -o engine --lookahead 5,5,5 --dry-run",
        "trtla build --from-existing trtllm-engine --lookahead 7,7,7 --tokenizer-dir llama-3-8b",
    ],
)
@model_flag(
    name="checkpoint_dir",
    required=False,
    help="Checkpoint made by trtla convert; a Hugging Face folder or a GGUF file is converted "
    "on the way.",
)
@setting("-o", "--output-dir", basic=True, type=PATH, help="Engine folder to write.")
@setting(
    "--from-existing",
    type=PATH,
    metavar="ENGINE",
    help="Instead of building: write trtla.json, with the triple of --lookahead, into an engine of "
    "trtllm-build.",
)
@setting(
    "--tokenizer-dir",
    type=MODEL,
    help="With --from-existing: folder with the tokenizer files to copy into the engine.",
)
@setting(
    "--lookahead",
    basic=True,
    type=TRIPLE,
    show_default=f"{DEFAULT_LOOKAHEAD}, or what fits the limits; none for TensorRT-LLM",
    help="window,ngram,verification: the largest triple the engine can run.",
)
@setting(
    "--head",
    type=PATH,
    metavar="HEAD",
    help="A trained head of the model (EAGLE-3, Medusa): its folder, GGUF file or name on the hub. "
    "It is copied into head/ of a torch engine, and drafts wherever that is opened; a head/ in the "
    "input folder stays behind unless it is named here.",
)
@switch("--no-lookahead", help="Build a plain engine, without room for drafts.")
@setting("--max-batch-size", type=COUNT, default=32, help="Requests decoded at a time, at most.")
@setting(
    "--max-input-len",
    type=TOKENS,
    show_default="max_seq_len, for TensorRT-LLM at most 1024",
    help="Longest prompt in tokens.",
)
@setting(
    "--max-seq-len",
    basic=True,
    type=TOKENS,
    show_default="2048, at most the model's",
    help="Longest prompt and output together.",
)
@setting(
    "--max-num-tokens",
    type=TOKENS,
    show_default="8192, at least max_batch_size x (max_draft_len + 1)",
    help="Tokens in one forward, at most.",
)
@setting(
    "--max-draft-len",
    type=click.IntRange(0),
    show_default="computed",
    help="As trtllm-build has it. Must agree with --lookahead; alone it makes an engine that holds "
    "every triple that needs exactly that many draft tokens: --lookahead of trtla run chooses one.",
)
@setting(
    "--dtype",
    type=DTYPES,
    default="auto",
    help="Type of the weights; auto keeps the checkpoint's, but takes float16 for a "
    "Hugging Face folder in float32.",
)
@setting(
    "--backend",
    type=click.Choice(["auto", "tensorrt-llm", "torch"]),
    default="auto",
    help="auto takes tensorrt-llm where it and a GPU of compute capability 8.0 are, else torch.",
)
@setting(
    "--workers",
    type=COUNT,
    default=1,
    help="Ranks that tensorrt-llm builds at a time, each on a GPU of its own.",
)
@several(
    "--trtllm",
    type=TEXT,
    metavar="KEY=VALUE",
    help="Fields of TensorRT-LLM's BuildConfig and PluginConfig by their own names, such as "
    "weight_streaming=true or plugin_config.gemm_plugin=fp8.",
)
@setting(
    "--timing-cache",
    type=PATH,
    metavar="FILE",
    help="Measurements of TensorRT's kernels, read if the file is there, and written for the next "
    "build: it is faster then.",
)
@switch(
    "--gather-context-logits",
    help="Keep the logits of prompts; plain engines only, TensorRT-LLM refuses it with lookahead.",
)
@switch(
    "--dry-run",
    help="Show settings, their sources, memory, files and, for tensorrt-llm, the same build with "
    "trtllm-build; write nothing.",
)
@switch(
    "--force",
    help="Replace what is in the output folder; with --from-existing, the engine's trtla.json.",
)
@json_flag("Print one JSON document: the plan of a dry run, or what was written.")
@click.pass_context
def build(ctx: click.Context, /, **flags: Any) -> None:
    """Build an engine folder: weights, limits and the lookahead triple that it is built for.

    The draft tokens of a step, max_draft_len = (ngram - 2) + (window - 1 + verification) x
    (ngram - 1), are computed from the triple.
    """
    console = ctx.ensure_object(Console)
    if flags["from_existing"] is None:
        _build(ctx, console, flags)
    else:
        _adopt(ctx, console, flags)


def _build(ctx: click.Context, console: Console, flags: dict[str, Any]) -> None:
    _check_required(ctx, flags)
    from trtla.build.engine import build_engine, choose_backend, describe_build
    from trtla.formats.engine_limits import BuildSettings

    fields = trtllm_settings(ctx, trtllm=lambda: choose_backend(flags["backend"])[0] != "torch")
    settings = BuildSettings(
        lookahead=_triple(ctx, console, flags),
        gather_context_logits=flags["gather_context_logits"],
        trtllm=(*flags["trtllm"], *fields),
        timing_cache=Path(flags["timing_cache"]) if flags["timing_cache"] else None,
        **{name: flags[name] for name in _LIMITS},
    )
    checkpoint, output = Path(flags["checkpoint_dir"]), Path(flags["output_dir"])
    choice = {name: flags[name] for name in ("backend", "dtype", "workers", "head")}
    origin = Given(ctx).sources(*_SETTINGS)
    if settings.lookahead == AUTOREGRESSIVE and flags["no_lookahead"]:
        origin["lookahead"] = Given(ctx).source("no_lookahead")
    if flags["max_draft_len"] is None:
        origin["max_draft_len"] = "computed"
    elif flags["lookahead"] is None and not flags["no_lookahead"]:
        origin["lookahead"] = "max_draft_len"
    plan = describe_build(checkpoint, settings, output_dir=output, **choice)
    if flags["max_num_tokens"] not in (None, plan.build_config.max_num_tokens):
        origin["max_num_tokens"] += ", corrected"
    _note_plugin_type(ctx, console, plan.dtype)
    if flags["dry_run"]:
        show_plan(console, plan, origin, output)
        return
    if not console.json:
        show_kind(console, plan)
    for note in plan.notes:
        console.note(f"note: {note}")
    with console.progress("build") as progress:
        more = {"force": flags["force"], "sources": origin, "progress": progress}
        build_engine(checkpoint, output, settings, **choice, **more)
    if plan.backend == "torch":
        _compile_forward()
    show_written(console, output, plan.backend, plan.lookahead, plan.notes)


def _note_plugin_type(ctx: click.Context, console: Console, dtype: str) -> None:
    wanted = upstream_values(ctx).get("gpt_attention_plugin", "auto").lower()
    if wanted not in ("auto", dtype):
        console.note(f"note: gpt_attention_plugin is {dtype}, the model's type, not {wanted}")


def _triple(ctx: click.Context, console: Console, flags: dict[str, Any]) -> LookaheadConfig | None:
    """The requested triple, or the most useful one of those with the requested max_draft_len.

    The engine is the same for all of them: each can be named when it is opened. None: the
    default."""
    triple, draft_len = _requested(ctx, flags), flags["max_draft_len"]
    mode = upstream_values(ctx).get("speculative_decoding_mode", "")
    if mode.lower() == "lookahead_decoding" and not (triple or draft_len):
        raise UsageError(
            "--speculative-decoding-mode lookahead_decoding needs the size of a draft",
            "give --lookahead 7,7,7, or --max-draft-len 83",
        )
    if triple is not None or not draft_len:
        return triple
    first, *others = triples_for(draft_len)
    some = " or ".join(map(str, others[:2]))
    also = f"; trtla run --lookahead {some} fits it too" if others else ""
    console.note(f"note: max_draft_len {draft_len} without a triple: lookahead is {first}{also}")
    return first


def _requested(ctx: click.Context, flags: dict[str, Any]) -> LookaheadConfig | None:
    """The triple of --lookahead or --no-lookahead; flags take precedence over presets."""
    triple: LookaheadConfig | None = flags["lookahead"]
    if not flags["no_lookahead"]:
        return triple
    by_flag = list(map(Given(ctx).by_flag, ("lookahead", "no_lookahead")))
    if triple is not None and by_flag[0] == by_flag[1]:
        raise UsageError(
            f"--no-lookahead and --lookahead {triple} exclude each other", "omit one of them"
        )
    return triple if by_flag[0] else AUTOREGRESSIVE


def _compile_forward() -> None:
    """Compile the CPU's forward and the candidate trees for the first run."""
    from trtla.runtime.models.cpu.native_code import (
        FORWARD,
        SLOWER,
        TREES,
        NotCompiled,
        note_slower,
    )

    try:
        FORWARD.load()
        TREES.load()
    except NotCompiled as error:
        note_slower(error, SLOWER)


def _check_required(ctx: click.Context, flags: dict[str, Any]) -> None:
    """Check flags that are required for building only, which click cannot express."""
    for param in ctx.command.params:
        if param.name in ("checkpoint_dir", "output_dir") and flags[param.name] is None:
            raise click.MissingParameter(ctx=ctx, param=param)
    if flags["tokenizer_dir"] is not None:
        raise UsageError(
            "--tokenizer-dir goes with --from-existing only",
            "omit it: the tokenizer files of the checkpoint are copied",
        )


def _adopt(ctx: click.Context, console: Console, flags: dict[str, Any]) -> None:
    unused = [*filter(Given(ctx).by_flag, _BUILD_ONLY)]
    unused += [name for name in upstream_values(ctx) if name != "log_level"]
    if unused:
        raise UsageError(
            f"--{unused[0].replace('_', '-')} does not go with --from-existing: nothing is built",
            "give --lookahead, and --tokenizer-dir for the tokenizer files",
        )
    from trtla.trtllm.build import adopt_engine

    engine = adopt_engine(
        flags["from_existing"],
        flags["lookahead"],
        tokenizer=flags["tokenizer_dir"],
        force=flags["force"],
        sources=Given(ctx).sources("lookahead"),
    )
    triple = engine.lookahead or AUTOREGRESSIVE
    show_written(console, engine.path, engine.backend, triple.as_tuple())
