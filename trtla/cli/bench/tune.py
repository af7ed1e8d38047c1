"""`trtla tune`: flags and checks; the work is in trtla.tune, the printing in tune_output."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.shared.command import Command
from trtla.cli.shared.model import check_batch_size, check_texts, engine_limits, is_trtllm, loading
from trtla.cli.shared.options import (
    ENDS,
    MODEL,
    PATH,
    chat_flags,
    json_flag,
    length_flag,
    model_flag,
    options_of,
    place_flags,
    setting,
    stack,
    switch,
    tokenizer_flag,
)
from trtla.cli.shared.params import check_new_file
from trtla.cli.shared.values import COUNT, COUNTS, NAMES, TEXT, TOKENS
from trtla.console import Console
from trtla.errors import UsageError
from trtla.files import temporary_folder
from trtla.formats.folder import folder_kind
from trtla.settings.executor import ExecutorOptions
from trtla.settings.fields import parsed
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.messages import Asking
from trtla.settings.sampling import SamplingParams
from trtla.settings.value_types import ValueType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtla.results.documents import Tune
    from trtla.tune.plan import GpuPeaks, TuneSettings


_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*(s|m|h)?")
_FACTOR = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class DurationType(ValueType):
    """A time such as `90s`, `2m` or `1h`, in seconds; a bare number is seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse the time."""
        match = _DURATION.fullmatch(str(value).strip())
        seconds = float(match[1]) * _FACTOR[match[2]] if match else 0.0
        if seconds < 1.0:
            self.fail(f"{value!r} is not a time of at least 1s, such as 90s, 2m or 1h.", param, ctx)
        return seconds


@dataclass(frozen=True, slots=True)
class TuneFlags:
    """The command's flags as click parsed them."""

    engine_dir: str | None
    model_dir: str | None
    options: ExecutorOptions
    backend: str
    gpu: str | None
    prompts: tuple[str, ...]
    num_prompts: int
    asking: Asking
    batch_sizes: tuple[int, ...] | None
    sampling: SamplingParams
    budget: float
    rounds: int
    output_dir: str
    write: str | None
    force: bool
    dry_run: bool


tune_flags = stack(
    model_flag(
        "Model",
        required=False,
        help="What to tune: an engine made by trtla build, whose triple is the limit, or a Hugging "
        "Face Llama folder, which takes any.",
    ),
    tokenizer_flag("Model"),
    place_flags,
    setting(
        "--backend",
        section="TensorRT-LLM engines",
        type=click.Choice(["auto", "torch", "tensorrt-llm"]),
        default="auto",
        help="tensorrt-llm: which triple to build an engine of TensorRT-LLM with; auto: the "
        "engine's.",
    ),
    setting(
        "--model-dir",
        section="TensorRT-LLM engines",
        type=MODEL,
        help="The model itself, whose texts show the acceptance: a Hugging Face folder, a "
        "checkpoint, or a torch engine.",
    ),
    setting(
        "--gpu",
        section="TensorRT-LLM engines",
        type=TEXT,
        metavar="h200|h100|a100|l40s|...",
        show_default="the one that is here",
        help="Take the costs from this GPU's published peaks: a bound, not a measurement.",
    ),
    setting(
        "--prompts",
        basic=True,
        section="Prompts",
        type=NAMES,
        default="code,chat,summarization",
        help="Shipped sets, .jsonl files with {text} or {category, text} lines or in Spec-Bench's "
        "format, or .txt files with a prompt a line.",
    ),
    setting(
        "--num-prompts",
        section="Prompts",
        type=COUNT,
        default=4,
        help="Most prompts of a category.",
    ),
    chat_flags,
    length_flag(type=TOKENS, default=96, help="Tokens to write."),
    options_of(
        SamplingParams, "Sampling", but=ENDS, seed={"help": "Prompt i samples with seed + i."}
    ),
    setting(
        "--batch-sizes",
        section="Search",
        type=COUNTS,
        show_default="those of 1,4,16 that the engine takes",
        help="Prompts decoded together; the first is what the recommendation is for.",
    ),
    setting(
        "--budget",
        basic=True,
        section="Search",
        type=DurationType(),
        default="2m",
        help="Time to measure for, such as 90s, 2m or 1h; what was measured is kept, and the same "
        "command goes on from there.",
    ),
    setting(
        "--rounds",
        section="Search",
        type=COUNT,
        default=15,
        help="Turns of every verified triple, at most; three in any case, more within the budget.",
    ),
    setting(
        "--output-dir",
        section="Output",
        type=PATH,
        default="tune-results",
        help="Folder for measurements and tune.json.",
    ),
    setting(
        "--write",
        basic=True,
        section="Output",
        type=PATH,
        metavar="PRESET.yaml",
        help="Write the recommendation as a preset for --config.",
    ),
    switch("--force", section="Output", help="Replace the file of --write."),
    switch(
        "--dry-run", section="Output", help="Check everything and show the plan; measure nothing."
    ),
    json_flag("Print the JSON document, which is also written to tune.json.", section="Output"),
)


_BATCH_SIZES = (1, 4, 16)
DOCUMENT = "tune.json"


@click.command(
    cls=Command,
    short_help="The best lookahead triple for a model, a machine and a kind of text.",
    examples=[
        "trtla tune --engine-dir engine",
        "trtla tune --engine-dir llama-3-8b --prompts mine.jsonl --budget 10m --write mine.yaml",
        "trtla tune --engine-dir engine --batch-sizes 1,8 --temperature 0.7 --json",
        "trtla tune --backend tensorrt-llm --model-dir llama-3-8b --gpu h100 --budget 30m",
    ],
)
@tune_flags
@click.pass_obj
def tune(console: Console, /, **values: Any) -> None:
    """Find the window, n-gram and verification set sizes that are fastest here.

    What a step costs by the tokens it feeds is measured apart from what a triple accepts, which
    depends on the text alone. Together they predict the speed-up of every triple that is tried;
    the best ones and auto, the default, are then decoded for real, in rounds with plain decoding.
    The fastest is recommended. Texts go on behind an end token.
    """
    flags = parsed(TuneFlags, values)
    plan = _check(flags, console)
    if flags.dry_run:
        from trtla.cli.bench.tune_output import show_plan

        show_plan(console, plan)
        return
    with _as_torch_model(plan) as settings:
        tuned = _run(console, settings, flags.options.threads)
    _finish(console, tuned, plan, flags)


def _check(flags: TuneFlags, console: Console) -> TuneSettings:
    """What can be refused before a model is loaded."""
    from trtla.cli.bench.tune_output import check_folder, check_preset
    from trtla.data.prompt_sets import load_sets
    from trtla.formats.t5_config import is_encoder_decoder
    from trtla.tune.plan import TuneSettings

    planned = _is_planned(flags)
    model, limit, lookahead = _model(flags, planned=planned)
    if is_encoder_decoder(Path(model)):
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
    texts = any(not one.is_chat for chosen in sets for one in chosen.questions)
    check_texts(console, flags.asking, (model, flags.options.tokenizer_dir), any_texts=texts)
    gpu = _gpu(flags, planned)
    if flags.write is not None:
        check_preset(Path(flags.write))
        check_new_file(Path(flags.write), "--write", force=flags.force)
    if not flags.dry_run:
        check_folder(Path(flags.output_dir))
    return TuneSettings(
        model=model,
        engine=flags.engine_dir or model,
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
    """Whether the answer is for an engine of TensorRT-LLM."""
    if flags.backend != "auto":
        return flags.backend == "tensorrt-llm"
    return _is_trtllm_engine(flags.engine_dir)


def _is_trtllm_engine(folder: str | None) -> bool:
    return folder is not None and folder_kind(Path(folder)) == "engine" and is_trtllm(Path(folder))


def _model(
    flags: TuneFlags, *, planned: bool
) -> tuple[str, LookaheadConfig, LookaheadConfig | None]:
    """The model that is decoded, the limit of the answer, and the triple to open the model with."""
    from trtla.tune.plan import FREE, coarse

    model = (flags.model_dir if planned else None) or flags.engine_dir
    if planned and (model is None or _is_trtllm_engine(model)):
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
    is_checkpoint = folder_kind(Path(model)) == "checkpoint"
    limit = None if planned and is_checkpoint else engine_limits(model)
    if limit is None:
        return model, FREE, FREE
    if is_trtllm(Path(model)):
        raise UsageError(f"{model} is an engine of TensorRT-LLM", "omit --backend torch")
    if not coarse(limit):
        raise UsageError(
            f"{model} was built with lookahead {limit}, which leaves no triple to tune",
            "tune the Hugging Face folder it came from, or rebuild it with --lookahead 7,7,7",
        )
    return model, limit, None


def _batch_sizes(flags: TuneFlags, model: str) -> tuple[int, ...]:
    if flags.batch_sizes is not None:
        check_batch_size(model, max(flags.batch_sizes))
        return tuple(dict.fromkeys(flags.batch_sizes))
    fitting = []
    for size in _BATCH_SIZES:
        try:
            check_batch_size(model, size)
        except UsageError:
            break
        fitting.append(size)
    return tuple(fitting) or (1,)


def _gpu(flags: TuneFlags, planned: bool) -> GpuPeaks | None:
    """The GPU to plan for; None: costs are measured here."""
    if flags.gpu is not None:
        if not planned:
            raise UsageError(
                f"--gpu {flags.gpu} plans for TensorRT-LLM, and costs are measured here",
                "omit --gpu, or add --backend tensorrt-llm",
            )
        from trtla.tune.plan import find_gpu

        return find_gpu(flags.gpu)
    if planned:
        import torch

        if not torch.cuda.is_available() or flags.options.device == "cpu":
            raise UsageError(
                "there is no GPU here whose costs could be measured", "give --gpu, such as h100"
            )
    return None


@contextmanager
def _as_torch_model(plan: TuneSettings) -> Iterator[TuneSettings]:
    """The settings with a model that runs: a checkpoint becomes an engine for the time being."""
    if folder_kind(Path(plan.model)) != "checkpoint":
        yield plan
        return
    from trtla.build.engine import build_engine
    from trtla.formats.engine_limits import BuildSettings

    with temporary_folder(plan.output_dir, ".model-") as folder:
        engine = folder / "engine"
        build_engine(Path(plan.model), engine, BuildSettings(plan.limit), backend="torch")
        yield replace(plan, model=str(engine), options=replace(plan.options, lookahead=None))


def _run(console: Console, settings: TuneSettings, threads: int | None) -> Tune:
    with loading():
        from trtla.runtime.models.load import set_threads
        from trtla.tune.tuner import tune as run_tune
    set_threads(threads)
    return run_tune(settings, lambda text: console.note(f"note: {text}"), console.progress)


def _finish(console: Console, tuned: Tune, plan: TuneSettings, flags: TuneFlags) -> None:
    """Write what there is to write, then print."""
    from trtla.cli.bench.tune_output import show, write_document, write_preset

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
