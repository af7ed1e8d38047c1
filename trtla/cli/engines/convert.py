"""`trtla convert`: a TensorRT-LLM checkpoint from a Hugging Face folder or a GGUF file."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared.command import Command
from trtla.cli.shared.options import DTYPES, PATH, model_flag, setting, switch
from trtla.cli.shared.params import Given
from trtla.cli.shared.values import COUNT, DEVICE, QUANTISED
from trtla.console import Console, Progress, counted
from trtla.errors import UsageError
from trtla.settings.upstream.programs import CONVERT

if TYPE_CHECKING:
    from trtla.build.quantize import Calibration

_INTEGERS = ("int8", "int4")
_GROUPED = (*_INTEGERS, "w4a16_awq")
_WEIGHT_ONLY = {"int8": "w8a16", "int4": "w4a16", "int4_awq": "w4a16_awq"}
"""The dtypes of TensorRT-LLM's precisions."""
_DTYPES_OF = {
    "group_size": _GROUPED,
    "kv_cache_dtype": ("fp8",),
    **dict.fromkeys(("calib_data", "calib_size", "calib_device"), ("fp8", *_GROUPED)),
}
"""Flags that go with some dtypes only."""
_conversion = partial(setting, section="Conversion")
_quantised = partial(setting, section="Quantisation")


@click.command(
    cls=Command,
    instead_of=CONVERT,
    short_help="Hugging Face folder or GGUF file -> TensorRT-LLM checkpoint.",
    examples=[
        "trtla convert llama-3-8b -o ckpt",
        "trtla convert model.gguf -o ckpt",
        "trtla convert llama-3-70b -o ckpt --dtype bfloat16 --tp-size 8",
        "trtla convert llama-3-8b -o ckpt --dtype fp8 --kv-cache-dtype fp8",
        "trtla convert llama-3-8b -o ckpt --dtype fp8 --calib-data texts.txt",
        "trtla convert llama-3-8b -o ckpt --dtype float16 --use-fp8",
        "trtla convert llama-3-8b -o ckpt --dtype int4",
        "trtla convert llama-3-8b -o ckpt --dtype w4a16_awq --tp-size 2",
    ],
)
@model_flag(
    "Conversion",
    "model_dir",
    help="Hugging Face folder of a Llama, Mistral, Qwen or another supported family, its name on "
    "the hub such as org/name, or a GGUF file.",
)
@_conversion(
    "-o",
    "--output-dir",
    basic=True,
    type=PATH,
    required=True,
    help="Checkpoint folder to write: config.json and rank*.safetensors.",
)
@_conversion(
    "--dtype",
    basic=True,
    type=click.Choice([*DTYPES.choices, *QUANTISED]),
    default="auto",
    help="Type of the weights; auto keeps the model's, float16 for float32, and a GGUF file's "
    "blocks. All others quantise the layers' linears and keep the rest as auto does. int8 and int4 "
    "are for the torch executor; embedding and lm_head become int8 too. w4a16_awq, w8a16 and w4a16 "
    "are for TensorRT-LLM on Ampere or newer, but not on compute capability 10 and 11: int4 in "
    "groups, and plain weights that it rounds to int8 or int4 when it builds.",
)
@_conversion("--tp-size", type=COUNT, default=1, help="Tensor-parallel ranks.")
@_conversion("--pp-size", type=COUNT, default=1, help="Pipeline-parallel ranks.")
@switch("--force", section="Conversion", help="Replace what is in the output folder.")
@switch(
    "--use-fp8",
    section="Quantisation",
    help="Quantise to FP8, where --dtype is the type of what stays unquantised; --dtype fp8 is "
    "--dtype auto --use-fp8.",
)
@switch(
    "--use-weight-only",
    section="Quantisation",
    help="Quantise weights alone, for TensorRT-LLM, to what --weight-only-precision says, where "
    "--dtype is the type of the rest; --dtype w8a16 is --dtype auto --use-weight-only.",
)
@_quantised(
    "--weight-only-precision",
    type=click.Choice(list(_WEIGHT_ONLY)),
    is_flag=False,
    flag_value="int8",
    default="int8",
    help="Of --use-weight-only: int8 is --dtype w8a16, int4 w4a16, int4_awq w4a16_awq.",
)
@_quantised(
    "--group-size",
    type=click.Choice(["32", "64", "128"]),
    show_default="32 for int8 and int4, 128 for w4a16_awq",
    help="Inputs that share a scale, of int8, int4 and w4a16_awq (64 or 128).",
)
@_quantised(
    "--kv-cache-dtype",
    type=click.Choice(["auto", "fp8"]),
    default="auto",
    help="Type of cached keys and values, of fp8; auto is that of the activations.",
)
@_quantised(
    "--calib-data",
    default="cnn_dailymail",
    show_default="cnn_dailymail for fp8, none for the others",
    metavar="cnn_dailymail|PATH",
    help="Texts that show how large activations get: CNN/DailyMail from the Hugging Face hub, a "
    ".txt file (cut into texts of 2048 characters), or a .jsonl file of {text} or {article} lines. "
    "int8, int4 and w4a16_awq round with less error where activations are large.",
)
@_quantised(
    "--calib-size",
    type=int,
    metavar="COUNT",
    default=512,
    help="Most texts to read, 512 tokens of each; -1: all.",
)
@_quantised(
    "--calib-device",
    type=DEVICE,
    metavar="auto|cpu|cuda",
    default="auto",
    help="Where the model runs for calibration; auto takes CUDA if available.",
)
@click.pass_context
def convert(ctx: click.Context, /, **flags: Any) -> None:
    """Convert a Hugging Face model or a GGUF file to a TensorRT-LLM checkpoint.

    Weights are streamed: memory follows the largest tensor, not the model. Only calibration runs
    the whole model. TensorRT-LLM does not read int8 and int4; the torch executor reads every dtype.
    The folder appears when it is complete, or not at all.
    """
    console = ctx.ensure_object(Console)
    flags["unrounded"] = _take_weight_only(ctx, flags)
    _refuse_flags(ctx)
    from trtla.build import convert as converter

    fp8, has_texts = _is_fp8(flags), Given(ctx).explicit("calib_data")
    with console.progress("calibrate", "texts") as texts, console.progress("convert") as progress:
        converter.convert(
            Path(flags["model_dir"]),
            Path(flags["output_dir"]),
            dtype="auto" if flags["dtype"] == "fp8" else flags["dtype"],
            unrounded=flags["unrounded"],
            tp_size=flags["tp_size"],
            pp_size=flags["pp_size"],
            group_size=int(flags["group_size"]) if flags["group_size"] else None,
            calibration=_calibration(flags, texts) if fp8 or has_texts else None,
            fp8_kv_cache=flags["kv_cache_dtype"] == "fp8",
            force=flags["force"],
            progress=progress,
        )
    ranks, output = flags["tp_size"] * flags["pp_size"], flags["output_dir"]
    console.out(f"wrote {output}: {counted(ranks, 'rank')}")
    console.note(f"next: trtla build {output} -o ENGINE")


def _take_weight_only(ctx: click.Context, flags: dict[str, Any]) -> str:
    """Put the dtype of --use-weight-only into the flags; return the type of the rest."""
    dtype, rounded = flags["dtype"], _WEIGHT_ONLY[flags["weight_only_precision"]]
    if not flags["use_weight_only"] and Given(ctx).explicit("weight_only_precision"):
        ctx.ensure_object(Console).note(
            f"note: --weight-only-precision {flags['weight_only_precision']} has no effect "
            "without --use-weight-only"
        )
    if not flags["use_weight_only"] or dtype == rounded:
        return "auto"
    if flags["use_fp8"] or dtype in QUANTISED:
        other = "--use-fp8" if flags["use_fp8"] else f"--dtype {dtype}"
        raise UsageError(
            f"--use-weight-only quantises to {rounded}, and {other} to something else", "omit one"
        )
    flags["dtype"] = ctx.params["dtype"] = rounded
    return str(dtype)


def _is_fp8(flags: dict[str, Any]) -> bool:
    return bool(flags["use_fp8"]) or flags["dtype"] == "fp8"


def _refuse_flags(ctx: click.Context) -> None:
    """Refuse settings without effect, wherever they come from."""
    if (size := ctx.params["calib_size"]) < 1 and size != -1:
        raise UsageError(
            f"--calib-size {size} reads no text", "give a number of texts, or -1 for all"
        )
    dtype, has_texts = ctx.params["dtype"], Given(ctx).explicit("calib_data")
    if ctx.params["use_fp8"]:
        if dtype in QUANTISED[1:]:
            raise UsageError(
                f"--use-fp8 quantises to FP8, and --dtype {dtype} to something else", "omit one"
            )
        dtype = "fp8"
    for name, dtypes in _DTYPES_OF.items():
        if not Given(ctx).explicit(name):
            continue
        flag = f"--{name.replace('_', '-')}"
        if dtype not in dtypes:
            raise UsageError(
                f"{flag} {ctx.params[name]} is for --dtype {_either(dtypes)}, and dtype is {dtype}",
                f"add --dtype {dtypes[0]}, or omit {flag}",
            )
        if name.startswith("calib") and dtype != "fp8" and not has_texts:
            raise UsageError(
                f"{flag} {ctx.params[name]} is for texts, and {dtype} reads some only with "
                "--calib-data",
                f"add --calib-data, or omit {flag}",
            )


def _either(names: tuple[str, ...]) -> str:
    """The names as text: `a, b or c`."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _calibration(flags: dict[str, Any], progress: Progress) -> Calibration:
    from trtla.data.calibration import calibration

    return calibration(
        flags["model_dir"],
        flags["calib_data"],
        sys.maxsize if flags["calib_size"] == -1 else flags["calib_size"],
        device=flags["calib_device"],
        progress=progress,
    )
