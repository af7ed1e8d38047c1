"""`trtla tune`: flags, checks and files; the work is in trtla.tune, the printing in tune_report."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.command import Command
from trtla.cli.engine_check import check_batch_size, engine_limits, is_trtllm
from trtla.cli.loading import loading
from trtla.cli.settings import check_new_file
from trtla.cli.tune_flags import TuneFlags, tune_flags
from trtla.console import Console, command_line
from trtla.errors import TrtlaError, UsageError
from trtla.formats.folder import folder_kind
from trtla.formats.t5_config import is_encoder_decoder
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtla.tune.roofline import Gpu
    from trtla.tune.settings import Tuned, TuneSettings

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
def tune(console: Console, /, **flags: Any) -> None:
    """Find the window, n-gram and verification set sizes that are fastest here.

    What a step costs by the tokens it feeds is measured apart from what a triple accepts, which
    depends on the text alone. Together they predict the speed-up of every triple; the best ones
    are then decoded for real, in turns with plain decoding.
    """
    given = TuneFlags(**flags)
    plan = _check(given)
    if given.dry_run:
        from trtla.cli.tune_report import show_plan

        show_plan(console, plan)
        return
    with _as_torch_model(plan) as settings:
        tuned = _run(console, settings, given.threads)
    _finish(console, tuned, plan, given)


def _check(given: TuneFlags) -> TuneSettings:
    """What can be refused before a model is loaded."""
    from trtla.settings.sampling import SamplingParams
    from trtla.tune.measurements import check_folder
    from trtla.tune.preset import check_preset
    from trtla.tune.samples import load_prompts
    from trtla.tune.settings import TuneSettings

    planned = _is_planned(given)
    model, limit, server = _planned_model(given) if planned else _own_model(given)
    if is_encoder_decoder(Path(model)):  # replays know nothing of a text that an encoder reads
        raise UsageError(
            f"{model} is an encoder-decoder, whose acceptance tune cannot replay",
            "try triples with trtla run --request-lookahead, or measure them with trtla bench",
        )
    sampling = SamplingParams(
        given.max_output_len, given.temperature, given.top_k, given.top_p, given.seed
    )
    if planned and not sampling.greedy:
        raise UsageError(
            f"--temperature is {given.temperature:g}, but lookahead decoding in TensorRT-LLM is "
            "greedy only",
            "use --temperature 0",
        )
    sizes = _batch_sizes(given, model)
    sets = load_prompts(given.prompts, given.num_prompts)
    gpu = _gpu(given, planned)
    if given.write is not None:
        check_preset(Path(given.write))
        check_new_file(Path(given.write), "--write", force=given.force)
    if not given.dry_run:
        check_folder(Path(given.output_dir))
    return TuneSettings(
        model=model,
        engine=given.engine_dir or model,
        limit=limit,
        server=server,
        sets=tuple(sets),
        sampling=sampling,
        batch_sizes=sizes,
        budget_s=given.budget,
        rounds=given.rounds,
        output_dir=Path(given.output_dir),
        tokenizer_dir=given.tokenizer_dir,
        device=given.device,
        dtype=given.dtype,
        planned=planned,
        gpu=gpu,
    )


def _is_planned(given: TuneFlags) -> bool:
    """Whether the answer is for an engine of TensorRT-LLM."""
    if given.backend != "auto":
        return given.backend == "tensorrt-llm"
    folder = Path(given.engine_dir) if given.engine_dir else None
    return folder is not None and folder_kind(folder) == "engine" and is_trtllm(folder)


def _own_model(given: TuneFlags) -> tuple[str, LookaheadConfig, LookaheadConfig | None]:
    """The model that is tuned, its limit, and the triple to open it with."""
    from trtla.tune.grid import FREE

    if given.engine_dir is None:
        raise UsageError(
            "there is nothing to tune", "give --engine-dir ENGINE, or a Hugging Face folder"
        )
    if given.model_dir is not None:
        raise UsageError(
            "--model-dir goes with TensorRT-LLM engines only", "give --engine-dir alone"
        )
    limit = engine_limits(given.engine_dir)
    if limit is None:
        return given.engine_dir, FREE, FREE
    if is_trtllm(Path(given.engine_dir)):
        raise UsageError(
            f"{given.engine_dir} is an engine of TensorRT-LLM", "leave --backend torch away"
        )
    if not limit.max_draft_len:
        raise UsageError(
            f"{given.engine_dir} is a plain engine, which takes no triple but {AUTOREGRESSIVE}",
            "tune the Hugging Face folder it came from, or rebuild it with --lookahead 7,7,7",
        )
    return given.engine_dir, limit, None


def _planned_model(given: TuneFlags) -> tuple[str, LookaheadConfig, LookaheadConfig | None]:
    """The model whose texts tell what a TensorRT-LLM engine would accept."""
    from trtla.tune.grid import FREE

    model = given.model_dir
    if model is None:
        own = given.engine_dir
        if own is None or (folder_kind(Path(own)) == "engine" and is_trtllm(Path(own))):
            raise UsageError(
                "a triple for TensorRT-LLM needs the model itself to see what it accepts",
                "give --model-dir, the Hugging Face folder or the checkpoint",
            )
        model = own
    if folder_kind(Path(model)) != "engine":
        return model, FREE, FREE
    limit = engine_limits(model)
    if is_trtllm(Path(model)) or limit is None or not limit.max_draft_len:
        raise UsageError(
            f"--model-dir {model} is no torch engine with lookahead",
            "give the Hugging Face folder or the checkpoint that it was built from",
        )
    return model, limit, None


def _batch_sizes(given: TuneFlags, model: str) -> tuple[int, ...]:
    if given.batch_sizes is not None:
        check_batch_size(model, max(given.batch_sizes))
        return tuple(dict.fromkeys(given.batch_sizes))
    fitting = []
    for size in _BATCH_SIZES:
        try:
            check_batch_size(model, size)
        except UsageError:
            break
        fitting.append(size)
    return tuple(fitting) or (1,)


def _gpu(given: TuneFlags, planned: bool) -> Gpu | None:
    """The GPU to plan for; None: costs are measured here."""
    if given.gpu is not None:
        if not planned:
            raise UsageError(
                f"--gpu {given.gpu} plans for TensorRT-LLM, and costs are measured here",
                "leave --gpu away, or add --backend tensorrt-llm",
            )
        from trtla.tune.roofline import find_gpu

        return find_gpu(given.gpu)
    if planned:
        import torch

        if not torch.cuda.is_available() or given.device == "cpu":
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
    from dataclasses import replace

    from trtla.build.engine import build_engine
    from trtla.formats.engine_limits import BuildSettings

    with tempfile.TemporaryDirectory(prefix=".model-", dir=plan.output_dir) as folder:
        engine = Path(folder) / "engine"
        build_engine(Path(plan.model), engine, BuildSettings(plan.limit), backend="torch")
        yield replace(plan, model=str(engine), server=None)


def _run(console: Console, settings: TuneSettings, threads: int | None) -> Tuned:
    with loading():
        from trtla.runtime.models.load import set_threads
        from trtla.tune.tuner import tune as run_tune
    set_threads(threads)
    return run_tune(settings, lambda text: console.note(f"note: {text}"))


def _finish(console: Console, tuned: Tuned, plan: TuneSettings, given: TuneFlags) -> None:
    """Write what there is to write, then print."""
    from trtla.cli.tune_report import show
    from trtla.results.environment import environment
    from trtla.tune.document import document
    from trtla.tune.preset import preset_text, write_preset

    command = command_line()
    found = document(tuned, plan.engine, command, environment(command))
    _write_document(plan.output_dir / DOCUMENT, found)
    _draw(console, tuned, plan.output_dir)
    if given.write is not None:
        write_preset(Path(given.write), preset_text(tuned, plan.engine, command))
    if console.json:
        console.document(found)
    else:
        show(console, tuned, plan)
    if given.write is not None:
        console.note(f"note: the preset is {given.write}")


def _write_document(path: Path, found: dict[str, Any]) -> None:
    import json

    from trtla.files import write_whole

    try:
        write_whole(path, json.dumps(found, indent=1) + "\n")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}", "give another --output-dir"
        ) from None


def _draw(console: Console, tuned: Tuned, folder: Path) -> None:
    from trtla.tune.pictures import draw

    try:
        draw(tuned, folder)
    except UsageError:
        raise
    except TrtlaError as error:  # matplotlib is an extra
        console.note(f"note: no pictures: {error.message}; {error.hint}")
