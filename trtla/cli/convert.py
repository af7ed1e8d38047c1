"""`trtla convert`: a Hugging Face Llama folder becomes a TensorRT-LLM checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from trtla.cli.command import Command
from trtla.cli.options import DTYPES, PATH, setting, switch
from trtla.console import Console


@click.command(
    cls=Command,
    short_help="Hugging Face folder -> TensorRT-LLM checkpoint.",
    examples=[
        "trtla convert --model-dir llama-3-8b --output-dir ckpt",
        "trtla convert --model-dir llama-3-70b --output-dir ckpt --dtype bfloat16 --tp-size 8",
    ],
)
@setting(
    "--model-dir",
    type=PATH,
    required=True,
    help="Hugging Face folder of a LlamaForCausalLM or MistralForCausalLM.",
)
@setting(
    "--output-dir",
    type=PATH,
    required=True,
    help="Checkpoint folder to write: config.json and rank*.safetensors.",
)
@setting(
    "--dtype",
    type=DTYPES,
    default="auto",
    help="Type of the weights; auto keeps the model's, float16 for float32.",
)
@setting("--tp-size", type=click.IntRange(1), default=1, help="Tensor-parallel ranks.")
@setting("--pp-size", type=click.IntRange(1), default=1, help="Pipeline-parallel ranks.")
@switch("--force", help="Replace what is in the output folder.")
@click.pass_obj
def convert(
    console: Console,
    model_dir: str,
    output_dir: str,
    dtype: str,
    tp_size: int,
    pp_size: int,
    force: bool,
) -> None:
    """Convert a Hugging Face Llama checkpoint to a TensorRT-LLM checkpoint.

    Weights are streamed: memory follows the largest tensor, not the model. The folder appears when
    it is complete, or not at all.
    """
    from trtla.build import convert as converter

    with console.progress("convert") as progress:
        converter.convert(
            Path(model_dir),
            Path(output_dir),
            dtype=dtype,
            tp_size=tp_size,
            pp_size=pp_size,
            force=force,
            progress=progress,
        )
    ranks = tp_size * pp_size
    console.out(f"wrote {output_dir}: {ranks} rank{'s' if ranks > 1 else ''}")
    console.note(f"next: trtla build --checkpoint-dir {output_dir} --output-dir ENGINE")
