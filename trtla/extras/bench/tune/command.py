"""`trtla tune`: flags and checks; the work is in tuner.py, the printing in output.py."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared import options as opt
from trtla.cli.shared.command import Command
from trtla.cli.shared.model import (
    check_batch_size,
    engine_limits,
    is_trtllm,
    loading,
    model_at,
)
from trtla.cli.shared.params import check_new_file
from trtla.cli.shared.templates import check_texts
from trtla.cli.shared.values import DURATION
from trtla.console import Console
from trtla.errors import UsageError
from trtla.files import temporary_folder
from trtla.runtime.device import resolve_device
from trtla.settings.executor import ExecutorOptions
from trtla.settings.fields import parsed
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.messages import Asking
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtla.extras.bench.tune.documents import Tune
    from trtla.extras.bench.tune.grid import TuneSettings


@dataclass(frozen=True, kw_only=True)
class TuneFlags:
    """The command's flags as click parsed them."""

    backend: str = opt.flag(
        "tensorrt-llm: which triple to build an engine of TensorRT-LLM with; auto: the engine's.",
        section="TensorRT-LLM engines",
        type=click.Choice(["auto", "torch", "tensorrt-llm"]),
        default="auto",
    )
    model_dir: str | None = opt.flag(
        "The model itself, whose texts show the acceptance: a Hugging Face folder, a "
        "checkpoint, or a torch engine.",
        section="TensorRT-LLM engines",
        type=opt.MODEL,
    )
    gpu: str | None = opt.flag(
        "Take the costs from this GPU's published peaks: a bound, not a measurement.",
        section="TensorRT-LLM engines",
        metavar="h200|h100|a100|l40s|...",
        show_default="the one that is here",
    )
    prompts: tuple[str, ...] = opt.flag(
        "Shipped sets, .jsonl files with {text} or {category, text} lines or in Spec-Bench's "
        "format, or .txt files with a prompt a line.",
        section="Prompts",
        basic=True,
        default="code,chat,summarization",
    )
    num_prompts: int = opt.flag("Most prompts of a category.", section="Prompts", default=4)
    batch_size: tuple[int, ...] | None = opt.flag(
        "Prompts decoded together; the first is what the recommendation is for.",
        section="Search",
        show_default="those of 1,4,16 that the engine takes",
    )
    budget: float = opt.flag(
        "Time to measure for, such as 90s, 2m or 1h; measurements are kept, and the same "
        "command resumes from them.",
        section="Search",
        basic=True,
        type=DURATION,
        default="2m",
    )
    rounds: int = opt.flag(
        "Turns of every verified triple, at most; as many as the budget has time for.",
        section="Search",
        default=15,
    )
    output_dir: str = opt.flag(
        "Folder for measurements and tune.json.",
        "-o",
        section="Output",
        type=opt.PATH,
        default="tune-results",
    )
    write: str | None = opt.flag(
        "Write the recommendation as a preset for --config.",
        section="Output",
        basic=True,
        type=opt.PATH,
        metavar="PRESET.yaml",
    )
    force: bool = opt.flag("Replace the file of --write.", section="Output")
    dry_run: bool = opt.flag(
        "Check everything and show the plan; measure nothing.", section="Output"
    )

    engine_dir: str | None
    options: ExecutorOptions
    asking: Asking
    sampling: SamplingParams


_BATCH_SIZES = (1, 4, 16)
DOCUMENT = "tune.json"


@click.command(
    cls=Command,
    short_help="The best lookahead triple for a model, a machine and a kind of text.",
    examples=[
        "trtla tune engine",
        "trtla tune llama-3-8b --prompts mine.jsonl --budget 10m --write mine.yaml",
        "trtla tune engine --batch-size 1,8 --temperature 0.7 --json",
        "trtla tune --backend tensorrt-llm --model-dir llama-3-8b --gpu h100 --budget 30m",
    ],
)
@opt.model_flag(
    "Model",
    required=False,
    help="What to tune: an engine made by trtla build, whose triple is the limit, or a Hugging "
    "Face Llama folder, which takes any.",
)
@opt.tokenizer_flag("Model")
@opt.place_flags
@opt.flags_of(TuneFlags)
@opt.chat_flags
@opt.template_flags("Model")
@opt.length_flag(default=96, help="Tokens to write.")
@opt.options_of(
    SamplingParams, "Sampling", but=opt.ENDS, seed={"help": "Prompt i samples with seed + i."}
)
@opt.json_flag("Print the JSON document, which is also written to tune.json.", section="Output")
@click.pass_obj
def tune(console: Console, /, **values: Any) -> None:
    """Find the window, n-gram and verification set sizes that are fastest here.

    A triple's acceptance depends on the text alone, and is counted first. With the costs of steps
    that auto uses here, it predicts the speed-up of every triple that is tried; the best ones and
    auto, the default, are then measured in rounds with plain decoding, and the fastest is
    recommended. Texts continue past end tokens.
    """
    flags = parsed(TuneFlags, values)
    plan = _check(flags, console)
    if flags.dry_run:
        from trtla.extras.bench.tune.output import show_plan

        show_plan(console, plan)
        return
    with _as_torch_model(plan) as settings:
        with loading():
            from trtla.extras.bench.tune.tuner import tune as run_tune
            from trtla.runtime.threads import set_threads
        set_threads(flags.options.threads)
        tuned = run_tune(settings, lambda text: console.note(f"note: {text}"), console.progress)
    _finish(console, tuned, plan, flags)


def _check(flags: TuneFlags, console: Console) -> TuneSettings:
    from trtla.data.prompt_sets import load_sets
    from trtla.extras.bench.tune.grid import TuneSettings
    from trtla.extras.bench.tune.output import check_preset, make_folder
    from trtla.formats.gguf.folder import model_name

    planned = _is_planned(flags)
    model, limit, lookahead = _model(flags, planned=planned)
    if model_at(model).is_encoder_decoder:
        raise UsageError(
            f"{model} is an encoder-decoder, and trtla tune supports decoder-only models",
            "try triples with trtla run --request-lookahead, or measure them with trtla bench",
        )
    length = flags.sampling.max_output_len
    if length < 2:
        raise UsageError(
            f"--max-output-len is {length}: there is no step to draft for",
            "use 2 or more; 96 is the default",
        )
    if planned and not flags.sampling.greedy:
        raise UsageError(
            f"--temperature is {flags.sampling.temperature:g}, but lookahead decoding in "
            "TensorRT-LLM is greedy only",
            "use --temperature 0",
        )
    sizes = _batch_sizes(flags, model)
    sets = load_sets(flags.prompts, (), flags.num_prompts)
    check_texts(console, flags.asking, model, flags.options, sets)
    gpu = _gpu(flags, planned)
    if flags.write is not None:
        check_preset(Path(flags.write))
        check_new_file(Path(flags.write), "--write", force=flags.force)
    if not flags.dry_run:
        make_folder(Path(flags.output_dir))
    return TuneSettings(
        model=model,
        engine=model_name(flags.engine_dir or model),
        limit=limit,
        options=replace(flags.options, lookahead=lookahead),
        sets=tuple(sets),
        sampling=flags.sampling,
        batch_sizes=sizes,
        budget_s=flags.budget,
        rounds=flags.rounds,
        output_dir=Path(flags.output_dir),
        planned=planned,
        gpu=gpu,
        asking=flags.asking,
    )


def _is_planned(flags: TuneFlags) -> bool:
    if flags.backend == "auto":
        return flags.engine_dir is not None and is_trtllm(flags.engine_dir)
    return flags.backend == "tensorrt-llm"


def _model(
    flags: TuneFlags, *, planned: bool
) -> tuple[str, LookaheadConfig, LookaheadConfig | None]:
    """Return the model to decode, the limit of triples, and the triple to open the model with."""
    from trtla.extras.bench.tune.grid import FREE, coarse

    model = (flags.model_dir if planned else None) or flags.engine_dir
    if planned and (model is None or is_trtllm(model)):
        raise UsageError(
            "a triple for TensorRT-LLM needs the model itself to see what it accepts",
            "give --model-dir, the Hugging Face folder or the checkpoint",
        )
    if model is None:
        raise UsageError(
            "there is nothing to tune", "give --engine-dir ENGINE, or a Hugging Face folder"
        )
    if flags.model_dir is not None and not planned:
        raise UsageError(
            "--model-dir goes with TensorRT-LLM engines only", "give --engine-dir alone"
        )
    is_checkpoint = model_at(model).kind == "checkpoint"
    limit = None if planned and is_checkpoint else engine_limits(model)
    if limit is None:
        return model, FREE, FREE
    if is_trtllm(model):
        raise UsageError(f"{model} is an engine of TensorRT-LLM", "omit --backend torch")
    if not coarse(limit):
        raise UsageError(
            f"{model} was built with lookahead {limit}, which leaves no triple to tune",
            "tune the Hugging Face folder it came from, or rebuild it with --lookahead 7,7,7",
        )
    return model, limit, None


def _batch_sizes(flags: TuneFlags, model: str) -> tuple[int, ...]:
    if flags.batch_size is not None:
        check_batch_size(model, max(flags.batch_size))
        return tuple(dict.fromkeys(flags.batch_size))
    fitting = []
    with suppress(UsageError):
        for size in _BATCH_SIZES:
            check_batch_size(model, size)
            fitting.append(size)
    return tuple(fitting) or (1,)


def _gpu(flags: TuneFlags, planned: bool) -> str | None:
    if flags.gpu is not None:
        if not planned:
            raise UsageError(
                f"--gpu {flags.gpu} plans for TensorRT-LLM, and costs are measured here",
                "omit --gpu, or add --backend tensorrt-llm",
            )
        from trtla.extras.bench.tune.prediction import find_gpu

        return find_gpu(flags.gpu).name
    if planned and (flags.options.device == "cpu" or resolve_device("auto").type == "cpu"):
        raise UsageError(
            "there is no GPU here whose costs could be measured", "give --gpu, such as h100"
        )
    return None


@contextmanager
def _as_torch_model(plan: TuneSettings) -> Iterator[TuneSettings]:
    """Yield the settings with a model that runs: a checkpoint becomes a temporary engine."""
    if model_at(plan.model).kind != "checkpoint":
        yield plan
        return
    from trtla.build.engine import build_engine
    from trtla.formats.engine_limits import BuildSettings

    limits = BuildSettings(plan.limit, max_seq_len=plan.options.max_seq_len)
    with temporary_folder(plan.output_dir, "model") as folder:
        engine = folder / "engine"
        build_engine(Path(plan.model), engine, limits, backend="torch")
        yield replace(plan, model=str(engine), options=replace(plan.options, lookahead=None))


def _finish(console: Console, tuned: Tune, plan: TuneSettings, flags: TuneFlags) -> None:
    from trtla.extras.bench.tune.output import show, write_document, write_preset

    write_document(tuned, plan.output_dir / DOCUMENT)
    written = flags.write is not None and write_preset(tuned, Path(flags.write))
    if console.json:
        console.document(tuned.document())
    else:
        show(console, tuned, plan)
    if written:
        console.note(f"note: the preset is {flags.write}")
    elif flags.write is not None:
        console.note(
            f"note: {flags.write} is not written: nothing was measured ahead of plain decoding"
        )
