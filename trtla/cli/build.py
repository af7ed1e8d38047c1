"""`trtla build`: a checkpoint, or a Hugging Face folder, becomes an engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.command import Command
from trtla.cli.options import DTYPES, PATH, setting, switch
from trtla.cli.settings import sources
from trtla.cli.values import COUNT, TRIPLE
from trtla.console import Console
from trtla.lookahead import AUTOREGRESSIVE, LookaheadConfig

if TYPE_CHECKING:
    from trtla.build.engine import BuildDescription

_LIMITS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_draft_len")


@click.command(
    cls=Command,
    short_help="Checkpoint or Hugging Face folder -> engine.",
    examples=[
        "trtla build --checkpoint-dir ckpt --output-dir engine --lookahead 7,7,7",
        "trtla build --checkpoint-dir ckpt --output-dir engine --config configs/llama-8b.yaml",
        "trtla build --checkpoint-dir ckpt --output-dir engine --lookahead 5,5,5 --dry-run",
    ],
)
@setting(
    "--checkpoint-dir",
    type=PATH,
    required=True,
    help="Checkpoint made by trtla convert; a Hugging Face Llama folder is converted on the way.",
)
@setting("--output-dir", type=PATH, required=True, help="Engine folder to write.")
@setting(
    "--lookahead",
    type=TRIPLE,
    show_default="none, a plain engine",
    help="window,ngram,verification: the largest triple the engine can run.",
)
@setting("--max-batch-size", type=COUNT, default=32, help="Requests decoded at a time, at most.")
@setting(
    "--max-input-len",
    type=COUNT,
    show_default="1024, at most max_seq_len",
    help="Longest prompt in tokens.",
)
@setting(
    "--max-seq-len",
    type=COUNT,
    show_default="2048, at most the model's",
    help="Longest prompt and output together.",
)
@setting(
    "--max-num-tokens",
    type=COUNT,
    show_default="8192, at least max_batch_size x (max_draft_len + 1)",
    help="Tokens in one forward, at most.",
)
@setting(
    "--max-draft-len",
    type=click.IntRange(0),
    show_default="computed",
    help="For pasted TensorRT-LLM commands; must agree with --lookahead.",
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
@switch("--dry-run", help="Show settings, their sources, files and memory; write nothing.")
@switch("--force", help="Replace what is in the output folder.")
@click.pass_context
def build(ctx: click.Context, /, **flags: Any) -> None:
    """Build an engine folder: weights, limits and the lookahead triple that it is built for.

    The draft tokens of a step, max_draft_len = (ngram - 2) + (window - 1 + verification) x
    (ngram - 1), are computed from the triple.
    """
    from trtla.build.engine import BuildSettings, build_engine, describe_build

    console = ctx.ensure_object(Console)
    triple: LookaheadConfig = flags["lookahead"] or AUTOREGRESSIVE
    settings = BuildSettings(lookahead=triple, **{name: flags[name] for name in _LIMITS})
    checkpoint, output = Path(flags["checkpoint_dir"]), Path(flags["output_dir"])
    choice = {"backend": flags["backend"], "dtype": flags["dtype"]}
    origin = sources(ctx, "lookahead", *_LIMITS, *choice)
    origin["max_draft_len"] = (
        "computed" if flags["max_draft_len"] is None else origin["max_draft_len"]
    )
    plan = describe_build(checkpoint, settings, **choice)
    _describe(console, triple, plan)
    if flags["dry_run"]:
        _dry_run(console, plan, origin, output)
        return
    with console.progress("build") as progress:
        build_engine(
            checkpoint,
            output,
            settings,
            **choice,
            force=flags["force"],
            sources=origin,
            progress=progress,
        )
    console.out(f"wrote {output}")
    console.note(f"next: trtla run --engine-dir {output} --input-text 'Once upon'")


def _describe(console: Console, triple: LookaheadConfig, plan: BuildDescription) -> None:
    kind = "plain engine" if triple.is_autoregressive else f"lookahead {triple.describe()}"
    console.out(f"{kind}, max_draft_len {plan.max_draft_len}")
    console.out(f"backend {plan.backend}: {plan.reason}")


def _dry_run(
    console: Console, plan: BuildDescription, origin: dict[str, str], output: Path
) -> None:
    """Print what would be built; the values are the resolved ones, not only those given."""
    values: dict[str, object] = {
        "lookahead": ",".join(map(str, plan.lookahead)),
        "max_batch_size": plan.build_config.max_batch_size,
        "max_input_len": plan.build_config.max_input_len,
        "max_seq_len": plan.build_config.max_text_len,
        "max_num_tokens": plan.build_config.max_num_tokens,
        "max_draft_len": plan.max_draft_len,
        "backend": plan.backend,
        "dtype": plan.dtype,
    }
    console.table(
        ("setting", "value", "from"), [(name, values[name], origin[name]) for name in values]
    )
    console.out(f"weights {plan.weight_bytes / 1e6:.1f} MB")
    console.out(f"KV cache {plan.kv_cache_bytes / 1e6:.1f} MB for a full batch")
    for name in plan.files:
        console.out(f"would write {output / name}")
