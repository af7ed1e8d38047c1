"""The page of a report: it gathers the sections and fills the template.

The template escapes everything that comes from a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from trtla.charts import COLOURS
from trtla.extras.bench.report import sentences
from trtla.extras.bench.report.figures import (
    ArmRow,
    Comparison,
    comparisons,
    equality,
    measured,
)
from trtla.extras.bench.report.headline import headline
from trtla.extras.bench.report.reading import Document, Source, read_all
from trtla.extras.bench.tune.documents import Tune
from trtla.measuring.summaries import ROUGE
from trtla.results.documents import Run
from trtla.results.rows import Summarize
from trtla.version import __version__

_MOST_ARMS = len(COLOURS)
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


def report(paths: Sequence[Path], title: str) -> str:
    """Return the page of the files."""
    return page(read_all(paths), title)


def page(sources: Sequence[Source], title: str) -> str:
    """Return the page of documents that have been read."""
    rows = [row for source in sources for row in measured(source)]
    compared = comparisons(rows)
    many, head = len(sources) > 1, headline(compared, sources)
    return _fill(
        title=title,
        version=__version__,
        headline=head.text,
        best=head.best,
        comparisons=compared,
        pictures=[
            picture
            for item in compared
            for picture in speed_pictures(item, f" (document {item.source})" if many else "")
        ],
        equality=equality(sources, rows),
        thin=list(sentences.thin(sources)),
        caveats=list(sentences.caveats(sources, rows)),
        measures=rows,
        rouge=[name for name in ROUGE if any(getattr(row.figures, name) for row in rows)],
        sources=sources,
        many=many,
    )


def _fill(**values: Any) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    inner = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    inner.globals.update(
        command_of=command_of,
        facts_of=facts_of,
        range_text=sentences.range_text,
        choice_speed=sentences.choice_speed,
        style=Markup(_own_file("style.css")),
    )
    inner.filters.update(
        figure=figure,
        times=lambda value: "-" if value is None else sentences.times(value),
        triple="W {0[0]}, N {0[1]}, G {0[2]}".format,
    )
    return inner.from_string(_own_file("page.html")).render(values)


def _own_file(name: str) -> str:
    return files("trtla.extras.bench.report").joinpath(name).read_text(encoding="utf-8")


def figure(value: float | None, digits: int = 2) -> str:
    """Format a number for a cell, large ones without decimals."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.{digits}f}"


def command_of(source: Source) -> str | None:
    """Return the command that made a document."""
    if isinstance(source.document, Tune):
        return source.document.argv
    return source.document.environment.get("command")


def facts_of(source: Source) -> list[tuple[str, str]]:
    """Return the settings and the machine of a document, with their labels."""
    machine = {**source.document.environment}
    machine.pop("command", None)
    if isinstance(memory := machine.get("memory_bytes"), int | float):
        machine["memory_bytes"] = f"{memory / 2**30:.1f} GiB"
    facts = {**_settings(source.document), **machine}
    return [
        (_LABELS.get(name, name), _words(value))
        for name, value in facts.items()
        if value not in (None, "", [], {})
    ]


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _settings(document: Document) -> dict[str, object]:
    """Return the settings of a document, by labels in words."""
    if isinstance(document, Run):
        return {"executor": document.executor, "prompts": len(document.results)}
    settings = {name.replace("_", " "): value for name, value in document.settings.items()}
    if isinstance(document, Summarize):
        settings["articles"] = document.items
    if isinstance(document, Tune) and document.time_s is not None:
        settings["tuning took"] = f"{document.time_s:.0f} s"
    return settings


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart of speed-ups as bars, in which an arm has one colour."""

    title: str
    groups: dict[str, dict[str, float]]
    """Speed-ups by arm, by group."""
    caption: str

    @property
    def top(self) -> float:
        """The value at the right end, at least plain decoding's 1."""
        return max(1.0, *(value for arms in self.groups.values() for value in arms.values()))

    @property
    def colours(self) -> dict[str, str]:
        arms = dict.fromkeys(name for members in self.groups.values() for name in members)
        return dict(zip(arms, COLOURS, strict=False))


def speed_pictures(comparison: Comparison, mark: str) -> Iterator[Picture]:
    """Yield charts of the speed-up by task and by batch size, if there are several."""
    same = [row for row in comparison.measures if row.conditions == comparison.conditions]
    by_task = _groups(comparison, [row for row in same if row.task], lambda row: str(row.task))
    if len(by_task) > 1:
        yield _picture(comparison, by_task, f"Speed-up by task{mark}", comparison.conditions)
    shared = same[0].under()
    alike = [row for row in comparison.measures if row.whole and row.under() == shared]
    by_batch = _groups(comparison, alike, lambda row: f"batch {row.figures.batch_size}")
    if len(by_batch) > 1:
        title, caption = f"Speed-up by batch size{mark}", f"{shared}; over all tasks"
        yield _picture(comparison, by_batch, title, caption)


def _groups(
    comparison: Comparison, measures: Sequence[ArmRow], key: Callable[[ArmRow], str]
) -> dict[str, dict[str, float]]:
    """Return speed-ups by arm, by group, of the fastest arms without plain decoding."""
    names, groups = chart_names(comparison), dict[str, dict[str, float]]()
    for row in measures:
        if row.name in names and row.speedup is not None:
            groups.setdefault(key(row), {})[names[row.name]] = row.speedup
    return groups


def chart_names(comparison: Comparison) -> dict[str, str]:
    """Return labels of the fastest arms by name: the arm without its setting if that is unique."""
    rows = [row for row in comparison.rows if not row.plain]
    arms = [row.arm for row in rows]
    return {
        row.name: row.arm if arms.count(row.arm) == 1 else row.name for row in rows[:_MOST_ARMS]
    }


def _picture(
    comparison: Comparison, groups: dict[str, dict[str, float]], title: str, caption: str
) -> Picture:
    others = sum(not row.plain for row in comparison.rows)
    left = f"; the fastest {_MOST_ARMS} of {others} arms" if others > _MOST_ARMS else ""
    return Picture(title, groups, f"{caption}{left}. The dashed line is plain decoding.")
