"""`trtla tune`: flags, checks and files; the work is in trtla.tune, the printing in tune_report."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.bench.tune_flags import TuneFlags, tune_flags
from trtla.cli.shared.command import Command
from trtla.cli.shared.model import check_batch_size, check_texts, engine_limits, is_trtllm, loading
from trtla.cli.shared.params import check_new_file
from trtla.console import Console
from trtla.errors import UsageError
from trtla.files import temporary_folder
from trtla.formats.folder import folder_kind
from trtla.settings.fields import parsed
from trtla.settings.lookahead import LookaheadConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtla.results.documents import Tune
    from trtla.tune.plan import Gpu, TuneSettings

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
    depends on the text alone. Together they predict the speed-up of every triple that is tried;
    the best ones and auto, the default, are then decoded for real, in rounds with plain decoding.
    The fastest is recommended. Texts go on behind an end token.
    """
    given = parsed(TuneFlags, flags)
    plan = _check(given, console)
    if given.dry_run:
        from trtla.cli.bench.tune_output import show_plan

        show_plan(console, plan)
        return
    with _as_torch_model(plan) as settings:
        tuned = _run(console, settings, given.options.threads)
    _finish(console, tuned, plan, given)


def _check(given: TuneFlags, console: Console) -> TuneSettings:
    """What can be refused before a model is loaded."""
    from trtla.cli.bench.tune_output import check_folder, check_preset
    from trtla.formats.t5_config import is_encoder_decoder
    from trtla.tune.plan import TuneSettings, load_prompts

    planned = _is_planned(given)
    model, limit, lookahead = _model(given, planned=planned)
    if is_encoder_decoder(Path(model)):
        raise UsageError(
            f"{model} is an encoder-decoder, and trtla tune supports decoder-only models",
            "try triples with trtla run --request-lookahead, or measure them with trtla bench",
        )
    length = given.sampling.max_output_len
    if length < 2:
        raise UsageError(
            f"--max-output-len is {length}: there is no step to draft for",
            "use 2 or more; 96 is the default",
        )
    if planned:
        _check_planned(given)
    sizes = _batch_sizes(given, model)
    sets = load_prompts(given.prompts, given.num_prompts)
    texts = any(not one.is_chat for chosen in sets for one in chosen.questions)
    check_texts(console, given.asking, (model, given.options.tokenizer_dir), any_texts=texts)
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
        options=replace(given.options, lookahead=lookahead),
        sets=tuple(sets),
        sampling=given.sampling,
        batch_sizes=sizes,
        budget_s=given.budget,
        rounds=given.rounds,
        output_dir=Path(given.output_dir),
        planned=planned,
        gpu=gpu,
        asking=given.asking,
    )


def _check_planned(given: TuneFlags) -> None:
    """What does not go with an engine of TensorRT-LLM that is still to be built."""
    if not given.sampling.greedy:
        raise UsageError(
            f"--temperature is {given.sampling.temperature:g}, but lookahead decoding in "
            "TensorRT-LLM is greedy only",
            "use --temperature 0",
        )


def _is_planned(given: TuneFlags) -> bool:
    """Whether the answer is for an engine of TensorRT-LLM."""
    if given.backend != "auto":
        return given.backend == "tensorrt-llm"
    return _is_trtllm_engine(given.engine_dir)


def _is_trtllm_engine(folder: str | None) -> bool:
    return folder is not None and folder_kind(Path(folder)) == "engine" and is_trtllm(Path(folder))


def _model(
    given: TuneFlags, *, planned: bool
) -> tuple[str, LookaheadConfig, LookaheadConfig | None]:
    """The model that is decoded, the limit of the answer, and the triple to open the model with."""
    from trtla.tune.plan import FREE, coarse

    model = (given.model_dir if planned else None) or given.engine_dir
    if planned and (model is None or _is_trtllm_engine(model)):
        raise UsageError(
            "a triple for TensorRT-LLM needs the model itself to see what it accepts",
            "give --model-dir, the Hugging Face folder or the checkpoint",
        )
    if model is None:
        raise UsageError(
            "there is nothing to tune", "give --engine-dir ENGINE, or a Hugging Face folder"
        )
    if given.model_dir is not None and not planned:
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
                "omit --gpu, or add --backend tensorrt-llm",
            )
        from trtla.tune.plan import find_gpu

        return find_gpu(given.gpu)
    if planned:
        import torch

        if not torch.cuda.is_available() or given.options.device == "cpu":
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


def _finish(console: Console, tuned: Tune, plan: TuneSettings, given: TuneFlags) -> None:
    """Write what there is to write, then print."""
    from trtla.cli.bench.tune_output import show, write_document, write_preset

    write_document(tuned, plan.output_dir / DOCUMENT)
    written = given.write is not None and write_preset(tuned, Path(given.write))
    if console.json:
        console.document(tuned.document())
    else:
        show(console, tuned, plan)
    if written:
        console.note(f"note: the preset is {given.write}")
    elif given.write is not None:
        console.note(
            f"note: {given.write} is not written: nothing was measured ahead of plain decoding"
        )
