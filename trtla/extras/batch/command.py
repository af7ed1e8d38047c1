"""`trtla batch`: from flags to a job, and its messages; the work is in trtla.extras.batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import click

from trtla.cli.commands import extension
from trtla.cli.serve.served_model import (
    Flags,
    ServedModelFlags,
    checked,
    open_served,
    served_draft_flags,
    served_model_flags,
    served_name,
)
from trtla.cli.shared import options as opt
from trtla.cli.shared.command import Command
from trtla.cli.shared.model import save_corpus
from trtla.console import Console, counted
from trtla.interrupts import INTERRUPTS
from trtla.machine import process_rank

if TYPE_CHECKING:
    from trtla.extras.batch.job import Identity, Job
    from trtla.extras.batch.journal import Record
    from trtla.extras.batch.tasks import LineShare, Rows
    from trtla.extras.batch.work import Figures, Task
    from trtla.llm.llm import LLM


class Replicas(Protocol):
    """Replicas of the model that do the lines, which an extra may bring."""

    options: ClassVar[opt.Decorator]
    """The flags that ask for them."""

    @staticmethod
    def taken(params: dict[str, Any]) -> Replicas | None:
        """Take the flags out of the command's parameters; None: they ask for no replicas."""

    def check(self, flags: ServedModelFlags) -> None:
        """Refuse flags that replicas cannot serve."""

    def results(
        self,
        note: Callable[[str], None],
        flags: Flags,
        open_model: Callable[[Flags], LLM],
        tasks: Iterable[Rows],
        share: LineShare,
    ) -> AbstractContextManager[Iterator[Record]]:
        """The records of tasks from replicas, which end with the block."""


REPLICAS: type[Replicas] | None = extension("batch")


@dataclass(frozen=True, kw_only=True)
class BatchFlags(ServedModelFlags):
    """The command's flags as click parsed them."""

    output_dir: str = opt.flag(
        "Folder of the job: output.jsonl and errors.jsonl at its end, finished lines until then.",
        "-o",
        section="Output",
        basic=True,
        type=opt.PATH,
        required=True,
    )
    force: bool = opt.flag("Discard the folder's job, and start again.", section="Output")
    served_model_name: str | None = opt.flag(
        "The model's name in answers, and the only one that requests may name.",
        section="Model",
        basic=True,
        metavar="NAME",
        show_default="that of its folder or file",
    )

    requests: str


@click.command(
    cls=Command,
    short_help="A file of OpenAI's requests -> a folder of answers, resumable.",
    examples=[
        "trtla batch requests.jsonl -o out -m engine",
        "trtla batch requests.jsonl -o out -m model.gguf --served-model-name gpt-4o-mini --json",
    ],
)
@click.argument("requests", type=opt.PATH)
@opt.json_flag("Print the summary as a JSON document.", "Output")
@opt.flags_of(BatchFlags)
@opt.engine_flags(
    "Model", type=opt.PATH, required=False, show_default="the small one that trtla chat has"
)
@served_model_flags
@opt.stack(*([REPLICAS.options] if REPLICAS else []))
@served_draft_flags
@click.pass_obj
def batch(console: Console, /, **params: Any) -> int:
    """Answer a file of requests in OpenAI's batch format, here.

    REQUESTS has a line each: {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
    "body": {...}}; a body is what trtla serve takes, of /v1/completions too. The answers are in the
    order of the lines. After a kill, a crash or Ctrl-C the same command resumes, and no line is
    done twice; the files are the same to the last byte. A line that is wrong becomes an error of
    that line (exit code 1).
    """
    named = params["engine_dir"]
    replicas = REPLICAS.taken(params) if REPLICAS else None
    flags = checked(BatchFlags, params, console.note, "trtla batch REQUESTS MODEL")
    if replicas is not None:
        replicas.check(flags)
    if process_rank():  # the first rank has the job; the others serve until it has ended
        _open(flags).close()
        return 0
    INTERRUPTS.terminable()
    name = served_name(flags.served_model_name, named, flags)
    return _resume(console, flags, name, replicas)


def _open(flags: ServedModelFlags) -> LLM:
    return open_served(flags, "a batch")


def _resume(console: Console, flags: BatchFlags, name: str, replicas: Replicas | None) -> int:
    from trtla.extras.batch.job import check_folder, locked, open_job
    from trtla.extras.batch.lines import survey
    from trtla.extras.batch.work import Task

    source, folder = Path(flags.requests), Path(flags.output_dir)
    check_folder(folder, source)
    lines = survey(source)
    with locked(folder):
        job = open_job(folder, _identity(flags, lines.digest, name), source, force=flags.force)
        if job.finished is not None:
            console.note(f"note: the job in {folder} is finished; --force starts again")
            return _report(console, job, None)
        with job.journal(lines.last) as journal:
            task = Task(job, journal, source, lines, name)
            return _finish(console, flags, task, replicas)


def _identity(flags: BatchFlags, digest: str, name: str) -> Identity:
    from trtla.extras.batch.job import Identity, fingerprint

    folders = [Path(path) for path in (flags.engine_dir, flags.options.tokenizer_dir) if path]
    settings = flags.options.of_answers | {"served_model_name": name}
    settings |= {"force_greedy": True} if flags.force_greedy else {}
    return Identity(digest, fingerprint(tuple(folders)), settings)


def _finish(console: Console, flags: BatchFlags, task: Task, replicas: Replicas | None) -> int:
    """Do the remaining lines, then write the output; after a signal say how to resume."""
    counts, lines = task.journal.counts, counted(task.survey.count, "line")
    if counts.done:
        console.note(f"note: {counts.done} of {lines} are done already")

    try:
        figures = _decode(console, flags, task, replicas)
        done = task.job.finish(task.journal)
    except BaseException:
        if INTERRUPTS.came:  # some libraries raise another error in its place
            kept = f"{task.journal.kept()} of {lines} are done and kept in {task.job.folder}"
            print(f"note: {kept}; the same command resumes", file=sys.stderr)
        raise
    return _report(console, done, figures)


def _decode(
    console: Console, flags: BatchFlags, task: Task, replicas: Replicas | None
) -> Figures | None:
    from trtla.extras.batch.tasks import LineShare, checked, tasks

    counts, total = task.journal.counts, task.survey.count
    if counts.done == total:
        return None
    if replicas is not None:
        share, lines = LineShare(task.source.resolve(), task.labelling), task.left()
        asked = (console.note, flags, _open, tasks(lines, task.survey), share)
        with replicas.results(*asked) as records:
            return _keep(console, task.kept(checked(records)), task)
    with _open(flags) as llm:
        console.note(f"note: runs on {llm.description}")
        records = task.records(llm, lambda text: console.note(f"note: {text}"))
        figures = _keep(console, records, task)
        save_corpus(console, llm, flags.save_corpus)
        return figures


def _keep(console: Console, records: Iterator[Record], task: Task) -> Figures:
    """Take the records as they arrive, and show the job's progress."""
    from trtla.extras.batch.work import Figures

    counts, total = task.journal.counts, task.survey.count
    figures = Figures(counts.done)
    more = partial(figures.described, counts)
    with console.progress("batch", "lines", more, figures.before) as progress:
        progress(counts.done, total)
        for record in records:
            figures.tokens += record.output_tokens
            progress(counts.done, total)
    figures.end()
    return figures


def _report(console: Console, job: Job, figures: Figures | None) -> int:
    from trtla.extras.batch.job import failure

    failed = failure(job)
    if console.json:
        console.document(_document(job, figures))
        return 0 if failed is None else failed.exit_code
    counts = job.finished
    assert counts is not None
    seconds, speed = (None, None) if figures is None else (figures.seconds, figures.tokens_per_s)
    columns = ("lines", "failed", "prompt tokens", "output tokens", "S", "seconds", "tokens/s")
    tokens = (counts.prompt_tokens, counts.output_tokens, counts.tokens_per_step)
    console.table(columns, [(counts.done, counts.failed, *tokens, seconds, speed)])
    console.note(f"note: the answers are in {job.output}")
    if failed is not None:
        raise failed
    return 0


def _document(job: Job, figures: Figures | None) -> dict[str, Any]:
    from trtla.results.documents import SCHEMA_VERSION

    assert job.finished is not None
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "batch",
        "lines": job.finished.done,
        **asdict(job.finished),
        "tokens_per_step": job.finished.tokens_per_step,
        "created": job.created,
        "output": str(job.output),
        "errors": str(job.errors),
        "this_run": None if figures is None else figures.document(),
    }
