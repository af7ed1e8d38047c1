"""`trtla batch`: from flags to a job, and its messages; the work is in trtla.extras.batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
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
from trtla.errors import TrtlaError
from trtla.interrupts import INTERRUPTS
from trtla.machine import process_rank

if TYPE_CHECKING:
    from trtla.extras.batch.job import Job
    from trtla.extras.batch.journal import Record
    from trtla.extras.batch.tasks import LineShare, Rows
    from trtla.extras.batch.work import Task
    from trtla.llm.llm import LLM

Figures = dict[str, float]
"""The figures of this process's work on a job, as --json prints them."""


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
    "body": {...}}; a body is what trtla serve takes, of /v1/completions and /v1/responses too. The
    answers are in the order of the lines. After a kill, a crash or Ctrl-C the same command resumes,
    and no line is done twice; the files are the same to the last byte. A line that is wrong becomes
    an error of that line (exit code 1).
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
    from trtla.extras.batch.job import JOURNAL, fingerprint, locked, open_job
    from trtla.extras.batch.journal import Journal
    from trtla.extras.batch.lines import read_lines
    from trtla.extras.batch.work import Task

    folder, lines = Path(flags.output_dir), read_lines(Path(flags.requests))
    model = [Path(path) for path in (flags.engine_dir, flags.options.tokenizer_dir) if path]
    own = {"served_model_name": name, "force_greedy": flags.force_greedy}
    identity = {"input": lines.digest, "model": fingerprint(model)}
    with locked(folder):
        job = open_job(folder, identity | flags.options.of_answers | own, force=flags.force)
        if job.finished is not None:
            console.note(f"note: the job in {folder} is finished; --force starts again")
            return _report(console, job, None)
        with closing(Journal(folder / JOURNAL)) as journal:
            return _finish(console, flags, Task(job, journal, lines), replicas)


def _finish(console: Console, flags: BatchFlags, task: Task, replicas: Replicas | None) -> int:
    """Do the remaining lines, then write the output; after a signal say how to resume."""
    counts, total = task.journal.counts, len(task.lines.data)
    lines, figures = counted(total, "line"), None
    if counts.done:
        console.note(f"note: {counts.done} of {lines} are done already")
    try:
        if counts.done < total:
            with _records(console, flags, task, replicas) as records:
                figures = _keep(console, records, task)
        done = task.job.finish(task.journal)
    except BaseException:
        if INTERRUPTS.came:  # some libraries raise another error in its place
            kept = f"{counts.done} of {lines} are done and kept in {task.job.folder}"
            print(f"note: {kept}; the same command resumes", file=sys.stderr)
        raise
    return _report(console, done, figures)


@contextmanager
def _records(
    console: Console, flags: BatchFlags, task: Task, replicas: Replicas | None
) -> Iterator[Iterator[Record]]:
    """The records of the lines that are not done, from replicas or from the model itself."""
    from trtla.extras.batch.tasks import LineShare, tasks
    from trtla.extras.batch.work import Decoding

    if replicas is not None:
        share = LineShare(Path(flags.requests).resolve(), task.lines.digest, task.labelling)
        asked = (console.note, flags, _open, tasks(task.left), share)
        with replicas.results(*asked) as records:
            yield records
        return
    with _open(flags) as llm:
        console.note(f"note: runs on {llm.description}")
        decoding = Decoding(llm, task.labelling, lambda text: console.note(f"note: {text}"))
        yield decoding.records(map(task.lines.parse, task.left))
        save_corpus(console, llm, flags.save_corpus)


def _keep(console: Console, records: Iterator[Record], task: Task) -> Figures:
    """Keep the records as they arrive, and show the job's progress; a repeated line counts once."""
    counts, total = task.journal.counts, len(task.lines.data)
    before, tokens, began = counts.done, counts.output_tokens, time.monotonic()

    def figures() -> Figures:
        seconds = time.monotonic() - began
        speed = (counts.output_tokens - tokens) / seconds
        return {"before": before, "seconds": seconds, "tokens_per_s": speed}

    def more() -> str:
        return f"{counts.failed} failed, {figures()['tokens_per_s']:.1f} tokens/s"

    with console.progress("batch", "lines", more, before) as progress:
        progress(before, total)
        for record in records:
            if not counts.done:
                task.job.write()
            if record.number not in task.journal:
                task.journal.add(record)
                progress(counts.done, total)
    return figures()


def _report(console: Console, job: Job, figures: Figures | None) -> int:
    from trtla.results.documents import SCHEMA_VERSION

    counts = job.finished
    assert counts is not None
    if console.json:
        head = {"schema_version": SCHEMA_VERSION, "command": "batch", "lines": counts.done}
        steps = {"tokens_per_step": counts.tokens_per_step, "created": job.created}
        files = {"output": str(job.output), "errors": str(job.errors)}
        console.document({**head, **asdict(counts), **steps, **files, "this_run": figures})
        return int(counts.failed > 0)
    columns = ("lines", "failed", "prompt tokens", "output tokens", "S", "seconds", "tokens/s")
    tokens = (counts.prompt_tokens, counts.output_tokens, counts.tokens_per_step)
    speed = [(figures or {}).get(name) for name in ("seconds", "tokens_per_s")]
    console.table(columns, [(counts.done, counts.failed, *tokens, *speed)])
    if counts.answered:
        console.note(f"note: the answers are in {job.output}")
    if counts.failed:
        failed = f"{counts.failed} of {counted(counts.done, 'line')} failed"
        raise TrtlaError(f"{failed}; the first, {job.first_error}", f"all are in {job.errors}")
    return 0
