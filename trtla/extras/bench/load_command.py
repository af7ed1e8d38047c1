"""`trtla bench --serve`: its flags, checks and printing; the work is in load_runs.py."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from trtla.cli.shared.params import source
from trtla.console import Console, command_line, counted
from trtla.errors import CheckFailed, TrtlaError, UsageError
from trtla.extras.bench.flags import BenchFlags, filters_of, print_as
from trtla.files import read_text
from trtla.settings.messages import Asking
from trtla.settings.sampling import Filters

if TYPE_CHECKING:
    from trtla.extras.bench.load_client import Endpoint
    from trtla.extras.bench.load_runs import Load, LoadResult, LoadTest
    from trtla.results.rows import Row


def run_load_command(console: Console, flags: BenchFlags) -> None:
    """Check the flags, measure with a note for each run, and print the figures."""
    test = _check(console, flags)
    from trtla.extras.bench.load_report import document, head, remarks, row
    from trtla.extras.bench.load_runs import measure
    from trtla.extras.bench.results import rows_text
    from trtla.measuring.tables import tables
    from trtla.results.documents import host

    measured = measure(
        test,
        lambda text: console.note(f"note: {text}"),
        lambda run: console.note(_described(row(run))),
        console.progress,
    )
    machine, rows = host(command_line()), [row(run) for run in measured.runs]
    extra = {key: machine[key] for key in ("cpu", "cores", "trtla", "commit")}
    print_as(
        console,
        flags.output_format,
        document=lambda: document(test, measured, machine),
        csv=lambda: rows_text(rows, extra),
        text=lambda: [
            head(test, measured, machine),
            *tables(rows, console.table_text),
            *remarks(measured, rows),
        ],
    )
    if measured.interrupted:
        raise KeyboardInterrupt
    _check_answers(measured)


def _check(console: Console, flags: BenchFlags) -> LoadTest:
    from trtla.data.prompt_sets import load_sets, mixed
    from trtla.extras.bench.load_client import Server
    from trtla.extras.bench.load_runs import LoadTest

    filters: tuple[Filters, ...] = (Filters(0.0, flags.sampling.top_k, flags.sampling.top_p),)
    if flags.processor or _is_set("temperature"):  # else one set: loads alone are enough runs
        filters = filters_of(flags)
    sampling = [replace(flags.sampling, seed=flags.seed, **each._asdict()) for each in filters]
    system = flags.asking.system
    endpoint: Endpoint | None = flags.endpoint or (None if system is None else "chat")
    if system is not None and endpoint != "chat":
        raise UsageError(
            "--system is a message of a chat, which --endpoint completions has not", "omit one"
        )
    limit = flags.num_prompts if _is_set("num_prompts") else sys.maxsize
    questions = mixed(load_sets(flags.prompts, flags.categories, limit))
    if any(len(question.turns) > 1 for question in questions):
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
        prompts=tuple(question.turns[0] for question in questions),
        asking=Asking(system=system),
        requests=flags.num_prompts if _is_set("num_prompts") else share,
        sampling=sampling[0],
        arrivals_seed=flags.arrivals_seed,
        check_texts=flags.check_texts,
    )


def _is_set(name: str) -> bool:
    return source(click.get_current_context(), name) != "default"


def _loads(flags: BenchFlags) -> tuple[Load, ...]:
    from trtla.extras.bench.load_runs import Load

    if flags.concurrency and flags.request_rate:
        raise UsageError("--concurrency and --request-rate exclude each other", "omit one of them")
    for rate in flags.request_rate or ():
        if not rate > 0:
            raise UsageError(f"--request-rate has {rate:g}", "give numbers above 0, or inf")
    if flags.request_rate:
        return tuple(Load(request_rate=rate) for rate in flags.request_rate)
    return tuple(Load(concurrency=number) for number in flags.concurrency or (1,))


def server_url(text: str) -> str:
    """Return the address of a server, without a `/v1` at its end."""
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is no number
        known = False
    if not known or parts.query or parts.fragment:
        raise UsageError(
            f"--serve {text} is not the address of a server", "give one like http://127.0.0.1:8000"
        )
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def _key(file: str | None) -> str | None:
    if file is None:
        return None
    key = read_text(Path(file)).strip().partition("\n")[0].strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"{file} does not hold a key", "write the key on its first line")
    return key


def _extra(flags: BenchFlags) -> dict[str, Any]:
    fields = {"ignore_eos": flags.ignore_eos} if _is_set("ignore_eos") else {}
    if flags.extra_body is None:
        return fields
    try:
        value = json.loads(flags.extra_body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UsageError(
            f"--extra-body {flags.extra_body} is no JSON object", "write it like '{\"min_p\": 0.1}'"
        )
    return {**fields, **value}


def _described(row: Row) -> str:
    failed = f", {row.failed} failed" if row.failed else ""
    requests = counted(row.completed or 0, "request")
    return (
        f"{row.arm}: {requests} in {row.time_s or 0.0:.1f} s{failed}, "
        f"{row.tokens_per_s or 0.0:.1f} output tokens/s"
    )


def _check_answers(measured: LoadResult) -> None:
    """Fail if no request was answered, or if texts depend on concurrent requests."""
    answers = [answer for run in measured.runs for answer in run.answers.values()]
    failed = [answer.error for answer in answers if answer.error is not None]
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
            "with such a server a text depends on concurrent requests; look at its precision",
        )
