"""`trtla tune`: flags and checks; the work is in tuner.py, the printing in output.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared import options as opt
from trtla.cli.shared.command import Command
from trtla.cli.shared.model import is_trtllm, loading, model_at
from trtla.cli.shared.outputs import check_new_file
from trtla.cli.shared.templates import check_texts
from trtla.cli.shared.values import UnitType
from trtla.console import Console
from trtla.errors import UsageError
from trtla.extras.bench.flags import check_batch_size
from trtla.settings.executor import ExecutorOptions
from trtla.settings.fields import parsed
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.messages import Asking
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    from trtla.extras.bench.tune.grid import TuneSettings

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
DURATION = UnitType("time", _SECONDS, "a time of at least 1s, such as 90s, 2m or 1h", whole=False)


@dataclass(frozen=True, kw_only=True)
class TuneFlags:
    """The command's flags as click parsed them."""

    gpu: str | None = opt.flag(
        "Predict the triple to build an engine of TensorRT-LLM with, by this GPU's published "
        "peaks: a bound, not a measurement.",
        section="Search",
        metavar="h200|h100|a100|l40s|...",
    )
    prompts: tuple[str, ...] = opt.flag(
        "Shipped sets, .jsonl files with {text} or {category, text} lines or in Spec-Bench's "
        "format, or .txt files with a prompt a line.",
        section="Prompts",
        basic=True,
        default="code,chat,summarization",
    )
    num_prompts: int = opt.flag("Most prompts of a category.", section="Prompts", default=4)
    batch_size: int = opt.flag("Prompts decoded together.", section="Search", default=1)
    budget: float = opt.flag(
        "Time to measure for, such as 90s, 2m or 1h.",
        section="Search",
        basic=True,
        type=DURATION,
        default="2m",
    )
    write: str | None = opt.flag(
        "Write the recommendation as a preset for --config.",
        section="Output",
        basic=True,
        type=opt.PATH,
        metavar="PRESET.yaml",
    )
    force: bool = opt.flag("Replace the file of --write.", section="Output")
    engine_dir: str
    options: ExecutorOptions
    asking: Asking
    sampling: SamplingParams


@click.command(
    cls=Command,
    short_help="The best lookahead triple for a model, a machine and a kind of text.",
    examples=[
        "trtla tune engine",
        "trtla tune llama-3-8b --prompts mine.jsonl --budget 10m --write mine.yaml",
        "trtla tune engine --batch-size 8 --temperature 0.7 --json > tune.json",
        "trtla tune llama-3-8b --gpu h100",
    ],
)
@opt.model_flag(
    "Model",
    help="What to tune: an engine made by trtla build, whose triple is the limit, or a GGUF file "
    "or Hugging Face folder, which take any.",
)
@opt.tokenizer_flag("Model")
@opt.place_flags
@opt.flags_of(TuneFlags)
@opt.chat_flags
@opt.template_flags("Model")
@opt.length_flag(default=96, help="Tokens to write.")
@opt.options_of(SamplingParams, "Sampling", only=("temperature", "top_k", "top_p", "seed"))
@opt.json_flag("Print a JSON document, which trtla report reads.", section="Output")
@click.pass_obj
def tune(console: Console, /, **values: Any) -> None:
    """Find the window, n-gram and verification set sizes that are fastest here.

    A triple's acceptance depends on the text alone, and is counted first. With the costs of steps
    that auto uses here, it predicts the speed-up of every triple. The four best ones and auto, the
    default, are then measured in rounds with plain decoding, and the fastest is recommended. Texts
    continue past end tokens; prompt i samples with seed + i.
    """
    flags = parsed(TuneFlags, values)
    settings = _check(flags, console)
    with loading():
        from trtla.extras.bench.tune.output import show, write_preset
        from trtla.extras.bench.tune.tuner import tune as run_tune
        from trtla.runtime.threads import set_threads
    set_threads(flags.options.threads)
    tuned = run_tune(settings, lambda text: console.note(f"note: {text}"), console.progress)
    if flags.write is not None:
        write_preset(tuned, Path(flags.write))
    if console.json:
        console.document(tuned.document())
    else:
        show(console, tuned)


def _check(flags: TuneFlags, console: Console) -> TuneSettings:
    from trtla.data.prompt_sets import load_sets
    from trtla.extras.bench.tune.grid import TuneSettings
    from trtla.extras.bench.tune.prediction import check_gpu
    from trtla.trtllm.rules import check_family

    model, limit, sampling = flags.engine_dir, _limit(flags.engine_dir), flags.sampling
    gpu = None if flags.gpu is None else check_gpu(flags.gpu)
    if sampling.max_output_len < 2:
        short = f"--max-output-len is {sampling.max_output_len}: there is no step to draft for"
        raise UsageError(short, "use 2 or more; 96 is the default")
    if gpu is not None:
        check_family(model_at(model).config)
    if gpu is not None and not sampling.greedy:
        hot = f"--temperature is {sampling.temperature:g}, but TensorRT-LLM's lookahead is greedy"
        raise UsageError(f"{hot} only", "use --temperature 0, or omit --gpu")
    check_batch_size(model, flags.batch_size)
    sets = load_sets(flags.prompts, (), flags.num_prompts)
    check_texts(console, flags.asking, model, flags.options, sets)
    if flags.write is not None:
        if not flags.write.endswith((".yaml", ".yml")):
            raise UsageError(f"--write {flags.write} is not a .yaml file", "give it that ending")
        check_new_file(Path(flags.write), "--write", force=flags.force)
    is_free = model_at(model).engine is None
    return TuneSettings(
        model=model,
        limit=limit,
        options=replace(flags.options, lookahead=limit if is_free else None, find_head=False),
        sets=tuple(sets),
        sampling=sampling,
        batch_sizes=(flags.batch_size,),
        budget_s=flags.budget,
        gpu=gpu,
        asking=flags.asking,
    )


def _limit(model: str) -> LookaheadConfig:
    """Return the limit of triples; a model that has none to tune is refused."""
    from trtla.extras.bench.tune.grid import FREE, triples_within
    from trtla.formats.engine import check_is_engine

    if is_trtllm(model):
        raise UsageError(
            f"{model} is an engine of TensorRT-LLM, whose triple is chosen before it is built",
            "give the Hugging Face folder that it came from, with --gpu",
        )
    if model_at(model).is_encoder_decoder:
        raise UsageError(
            f"{model} is an encoder-decoder, and trtla tune supports decoder-only models",
            "try triples with trtla run --request-lookahead, or measure them with trtla bench",
        )
    opened = model_at(model)
    if opened.kind == "checkpoint":
        check_is_engine(opened.folder)
    limit = opened.engine.default_triple(None) if opened.engine else FREE
    if not triples_within(limit):
        raise UsageError(
            f"{model} was built with lookahead {limit}, which leaves no triple to tune",
            "tune the Hugging Face folder it came from, or rebuild it with --lookahead 7,7,7",
        )
    return limit
