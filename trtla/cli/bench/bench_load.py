"""`trtla bench --serve`: its flags, checks and printing; the work is in trtla.bench.load."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtla.cli.bench.bench_flags import BenchFlags, Mode, filters_of, print_as
from trtla.cli.shared.options import PATH, setting, stack, switch
from trtla.cli.shared.params import source
from trtla.cli.shared.values import COUNTS, NUMBERS, TEXT
from trtla.console import Console, command_line, counted
from trtla.errors import CheckFailed, TrtlaError, UsageError
from trtla.files import read_text
from trtla.settings.messages import Asking
from trtla.settings.sampling import Filters, SamplingParams

if TYPE_CHECKING:
    from trtla.bench.load_client import Endpoint
    from trtla.bench.load_runs import Load, LoadResult, LoadRun, LoadTest

_SECTION = "Load on a server: a run each of --concurrency or --request-rate"
_READ = (
    "prompts", "categories", "num_prompts", "system", "temperature", "processor", "top_k", "top_p",
    "max_output_len", "seed", "ignore_eos", "output_format", "json",
)  # fmt: skip
LOAD = Mode("--serve", _SECTION, _READ)
_ENDPOINTS = ("chat", "completions")

_own = partial(setting, section=_SECTION)

load_flags = stack(
    _own(
        "--serve",
        basic=True,
        type=TEXT,
        metavar="URL",
        help="Measure this server, in place of arms in this process: trtla serve, vLLM, SGLang, "
        "llama.cpp's, trtllm-serve or another one with OpenAI's routes. Figures are those of "
        "vllm bench serve.",
    ),
    _own(
        "--concurrency",
        type=COUNTS,
        show_default="1",
        help="Requests at a time: the next one is sent when one is over.",
    ),
    _own(
        "--request-rate",
        type=NUMBERS,
        help="Requests a second in place of that, at random times (a Poisson process); inf sends "
        "all at once.",
    ),
    _own("--arrivals-seed", type=int, default=0, help="Fixes the times of --request-rate."),
    _own(
        "--endpoint",
        type=click.Choice(_ENDPOINTS),
        show_default="chat; completions where trtla serve has no template",
        help="/v1/chat/completions, where each prompt is a user's message, or /v1/completions.",
    ),
    _own("--served-model-name", type=TEXT, show_default="the first", help="A model of the server."),
    _own("--api-key-file", type=PATH, help="Its first line is the server's key."),
    _own(
        "--extra-body",
        type=TEXT,
        metavar="JSON",
        help="""More fields of every request, such as '{"drafter": "none"}'.""",
    ),
    switch(
        "--check-texts",
        section=_SECTION,
        help="Ask every different request alone afterwards: a text that differs from one under "
        "load is a failed check (exit code 3).",
    ),
)
"""The flags of --serve."""


def run_load_command(console: Console, flags: BenchFlags) -> None:
    """Check, measure with a note a run, and print the figures."""
    test = _check(console, flags)
    from trtla.bench.load_runs import measure

    def on_run(run: LoadRun) -> None:
        console.note(_described(run))

    measured = measure(test, lambda text: console.note(f"note: {text}"), on_run, console.progress)
    _print(console, test, measured, flags.output_format)
    if measured.interrupted:
        raise KeyboardInterrupt
    _check_answers(measured)


def _check(console: Console, flags: BenchFlags) -> LoadTest:
    """What can be refused before the server is asked."""
    from trtla.bench.load_client import Server, server_url
    from trtla.bench.load_runs import LoadTest
    from trtla.data.prompt_sets import load_sets, mixed

    filters = _filters(flags)
    sampling = [SamplingParams(flags.max_output_len, *one, seed=flags.seed) for one in filters]
    system = flags.asking.system
    endpoint: Endpoint | None = flags.endpoint or (None if system is None else "chat")
    if system is not None and endpoint != "chat":
        raise UsageError(
            "--system is a message of a chat, which --endpoint completions has not", "omit one"
        )
    limit = flags.num_prompts if _is_set("num_prompts") else sys.maxsize
    questions = mixed(load_sets(flags.prompts, flags.categories, limit))
    if any(len(one.turns) > 1 for one in questions):
        console.note("note: of questions with several turns, the first one is asked")
    loads = _loads(flags)
    share = max(1, len(questions) // (len(loads) * len(filters)))
    return LoadTest(
        server=Server(
            server_url(flags.serve or ""),
            _key(flags.api_key_file),
            flags.served_model_name,
            endpoint,
            extra=_extra(flags),
        ),
        loads=loads,
        filters=filters,
        prompts=tuple(one.turns[0] for one in questions),
        asking=Asking(system=system),
        requests=flags.num_prompts if _is_set("num_prompts") else share,
        sampling=sampling[0],
        arrivals_seed=flags.arrivals_seed,
        check_texts=flags.check_texts,
    )


def _is_set(name: str) -> bool:
    return source(click.get_current_context(), name) != "default"


def _filters(flags: BenchFlags) -> tuple[Filters, ...]:
    """One unless lists are given: a load has runs enough."""
    if flags.processor or _is_set("temperature"):
        return filters_of(flags)
    return ((0.0, flags.top_k, flags.top_p),)


def _loads(flags: BenchFlags) -> tuple[Load, ...]:
    from trtla.bench.load_runs import Load

    if flags.concurrency and flags.request_rate:
        raise UsageError("--concurrency and --request-rate exclude each other", "omit one of them")
    for rate in flags.request_rate or ():
        if not rate > 0:
            raise UsageError(f"--request-rate has {rate:g}", "give numbers above 0, or inf")
    if flags.request_rate:
        return tuple(Load(request_rate=rate) for rate in flags.request_rate)
    return tuple(Load(concurrency=number) for number in flags.concurrency or (1,))


def _key(file: str | None) -> str | None:
    if file is None:
        return None
    key = read_text(Path(file)).strip().partition("\n")[0].strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{file} does not hold a key", "write the key on its first line")
    return key


def _extra(flags: BenchFlags) -> dict[str, Any]:
    """The fields of every request beside OpenAI's."""
    own = {"ignore_eos": flags.ignore_eos} if _is_set("ignore_eos") else {}
    if flags.extra_body is None:
        return own
    try:
        value = json.loads(flags.extra_body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UsageError(
            f"--extra-body {flags.extra_body} is no JSON object", "write it like '{\"min_p\": 0.1}'"
        )
    return {**own, **value}


def _described(run: LoadRun) -> str:
    from trtla.bench.load_report import row

    done = row(run)
    failed = f", {done.failed} failed" if done.failed else ""
    return (
        f"{run.load}: {counted(done.completed, 'request')} in {done.duration_s:.1f} s{failed}, "
        f"{done.output_throughput or 0.0:.1f} output tokens/s"
    )


def _print(console: Console, test: LoadTest, measured: LoadResult, output_format: str) -> None:
    from trtla.bench.load_report import csv_text, document, markdown_text
    from trtla.results.documents import host

    found = host(command_line())
    print_as(
        console,
        output_format,
        lambda: document(test, measured, found),
        lambda: csv_text(measured, found),
        lambda: console.out(markdown_text(test, measured, found)),
    )


def _check_answers(measured: LoadResult) -> None:
    """Fail where nothing was answered, or texts depend on what ran beside them."""
    answers = [one for run in measured.runs for one in run.answers.values()]
    failed = [one.error for one in answers if one.error is not None]
    if len(failed) == len(answers):
        raise TrtlaError(
            f"no request of {len(answers)} was answered: {failed[0]}",
            "lower the load, or correct what the server names",
        )
    checked = measured.checked
    if checked is None:
        return
    if checked.failed:
        raise CheckFailed(f"a text could not be checked: {checked.failed}", "run it again")
    if checked.equal < checked.texts:
        raise CheckFailed(
            f"{checked.texts - checked.equal} of {checked.texts} texts differ from those of the "
            f"same requests alone: {checked.first}",
            "with such a server a text depends on what runs beside it; look at its precision",
        )
