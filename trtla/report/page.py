"""Documents in, one HTML page out: gathers the sections and fills the template.

The template escapes everything that comes from a document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from trtla.report import sentences
from trtla.report.figures import Comparison, comparisons, equality, measured
from trtla.report.pictures import batch_of, speed_pictures
from trtla.report.reading import Source, read_all
from trtla.results.bench_documents import Bench
from trtla.results.documents import Run, Summarize, Tune, Verified
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.version import __version__


@dataclass(frozen=True, slots=True)
class Tuned:
    """What the page shows of a tune document."""

    source: Source
    document: Tune
    ran: Sequence[Verified]
    """What tune ran at that batch size; `ran_more` at the others."""
    ran_more: Sequence[Verified]


def report(paths: Sequence[Path], title: str) -> str:
    """The page that the files make."""
    return page(read_all(paths), title)


def page(sources: Sequence[Source], title: str) -> str:
    """The page of documents that are read."""
    every = [one for source in sources for one in measured(source)]
    found = comparisons(every)
    return _fill(
        title=title,
        version=__version__,
        headline=sentences.headline(found, sources),
        best=sentences.best_of(found),
        comparisons=found,
        pictures=[
            picture for one in found for picture in speed_pictures(one, _mark(sources, one.source))
        ],
        tuned=[_tuned(source) for source in sources if isinstance(source.document, Tune)],
        summaries=[source for source in sources if isinstance(source.document, Summarize)],
        runs=[source for source in sources if isinstance(source.document, Run)],
        equality=equality(sources, every),
        thin=list(sentences.thin(sources)),
        caveats=list(sentences.caveats(sources, every)),
        measures=every,
        origins=[origin(source) for source in sources],
        many=len(sources) > 1,
    )


def _mark(sources: Sequence[Source], number: int) -> str:
    """Names a chart's document where there are several."""
    return f" (document {number})" if len(sources) > 1 else ""


def _tuned(source: Source) -> Tuned:
    document = source.document
    assert isinstance(document, Tune)
    ran = [
        one
        for one in (*document.verified, *document.alternatives)
        if one.lookahead != AUTOREGRESSIVE.as_tuple()  # plain decoding beside itself
    ]
    batch = batch_of(document)
    return Tuned(
        source,
        document,
        [one for one in ran if one.batch_size == batch],
        [one for one in ran if one.batch_size != batch],
    )


def plain_row(comparison: Comparison) -> Any:
    """The row that others are compared with; None where it was not written down."""
    return next((row for row in comparison.rows if row.plain), None)


def _fill(**values: Any) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    inner = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    inner.globals.update(
        plain_row=plain_row,
        range_text=sentences.range_text,
        side_ratios=sentences.side_ratios,
        style=Markup(_own_file("style.css")),
    )
    inner.filters.update(figure=figure, times=_times, triple=triple)
    return inner.from_string(_own_file("page.html")).render(values)


def _own_file(name: str) -> str:
    return files("trtla.report").joinpath(name).read_text(encoding="utf-8")


def figure(value: float | None, digits: int = 2) -> str:
    """A number for a cell; large ones without decimals."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.{digits}f}"


def _times(value: float | None) -> str:
    return "-" if value is None else sentences.times(value)


def triple(value: Sequence[int]) -> str:
    """A triple with its names."""
    w, n, g = value
    return f"W {w}, N {n}, G {g}"


_LABELS = {
    "cpu": "processor",
    "instruction_sets": "instruction sets",
    "memory_bytes": "memory",
    "gpus": "GPUs",
    "platform": "system",
    "python": "Python",
    "torch": "PyTorch",
    "llama_cpp_python": "llama-cpp-python",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """A document's file, command, settings and machine."""

    number: int
    name: str
    kind: str
    command: str | None
    rows: tuple[tuple[str, str], ...]


def origin(source: Source) -> Origin:
    """What a document says about its making."""
    made_on = source.document.environment
    command = source.document.argv if isinstance(source.document, Tune) else made_on.get("command")
    rows = (*_settings(source), *_machine(made_on))
    return Origin(source.number, source.name, source.kind, str(command) if command else None, rows)


def _machine(made_on: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in made_on.items():
        if key == "command" or value in (None, "", []):
            continue
        yield _LABELS.get(key, key), _shown(key, value)


def _shown(key: str, value: Any) -> str:
    if key == "memory_bytes" and isinstance(value, int | float):
        return f"{value / 2**30:.1f} GiB"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _settings(source: Source) -> Iterator[tuple[str, str]]:
    match source.document:
        case Bench(settings=own):
            facts = {
                "model": own.model,
                "rounds": own.rounds,
                "tokens a prompt": own.max_output_len,
            }
        case Tune() as tune:
            facts = {"engine": tune.engine, "executor": tune.executor}
            facts["tuning took"] = None if tune.time_s is None else f"{tune.time_s:.0f} s"
        case Summarize() as own_summaries:
            facts = {
                "data set": own_summaries.dataset,
                "articles": own_summaries.items,
                "batch size": own_summaries.batch_size,
                "tokens a summary": own_summaries.output_len,
            }
        case Run() as run:
            facts = {"executor": run.executor, "prompts": len(run.results)}
        case ablation:
            models = dict.fromkeys(row.model for row in ablation.means if row.model)
            facts = {"model": ", ".join(models) or None}
    yield from ((label, str(value)) for label, value in facts.items() if value is not None)
