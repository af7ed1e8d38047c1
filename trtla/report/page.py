"""Documents in, one HTML page out: gathers the sections and fills the template.

The template escapes everything that comes from a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from trtla.bench.summarize import ROUGE
from trtla.charts import COLOURS
from trtla.report import sentences
from trtla.report.figures import (
    ArmRow,
    Comparison,
    comparisons,
    equality,
    measured,
)
from trtla.report.headline import headline
from trtla.report.reading import Document, Source, read_all
from trtla.results.bench_documents import Summarize
from trtla.results.documents import Run
from trtla.results.tune_documents import Tune
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
    """The page that the files make."""
    return page(read_all(paths), title)


def page(sources: Sequence[Source], title: str) -> str:
    """The page of documents that are read."""
    every = [one for source in sources for one in measured(source)]
    found = comparisons(every)
    many, said = len(sources) > 1, headline(found, sources)
    return _fill(
        title=title,
        version=__version__,
        headline=said.text,
        best=said.best,
        comparisons=found,
        pictures=[
            picture
            for one in found
            for picture in speed_pictures(one, f" (document {one.source})" if many else "")
        ],
        equality=equality(sources, every),
        thin=list(sentences.thin(sources)),
        caveats=list(sentences.caveats(sources, every)),
        measures=every,
        rouge=[name for name in ROUGE if any(getattr(one.figures, name) for one in every)],
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
    return files("trtla.report").joinpath(name).read_text(encoding="utf-8")


def figure(value: float | None, digits: int = 2) -> str:
    """A number for a cell; large ones without decimals."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.{digits}f}"


def command_of(source: Source) -> str | None:
    """The command that made a document."""
    if isinstance(source.document, Tune):
        return source.document.argv
    return source.document.environment.get("command")


def facts_of(source: Source) -> list[tuple[str, str]]:
    """The settings and the machine of a document."""
    made_on = {**source.document.environment}
    made_on.pop("command", None)
    if isinstance(memory := made_on.get("memory_bytes"), int | float):
        made_on["memory_bytes"] = f"{memory / 2**30:.1f} GiB"
    facts = {**_settings(source.document), **made_on}
    return [
        (_LABELS.get(name, name), _words(value))
        for name, value in facts.items()
        if value not in (None, "", [], {})
    ]


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _settings(document: Document) -> dict[str, object]:
    """What a document says of itself, in words."""
    if isinstance(document, Run):
        return {"executor": document.executor, "prompts": len(document.results)}
    own = {name.replace("_", " "): value for name, value in document.settings.items()}
    if isinstance(document, Summarize):
        own["articles"] = document.items
    if isinstance(document, Tune) and document.time_s is not None:
        own["tuning took"] = f"{document.time_s:.0f} s"
    return own


@dataclass(frozen=True, slots=True)
class Picture:
    """Speed-ups as bars, those of an arm alike in every group."""

    title: str
    groups: dict[str, dict[str, float]]
    """{group: {arm: speed-up}}."""
    caption: str

    @property
    def top(self) -> float:
        """The value at the right end; plain decoding's 1 has a place in any chart."""
        return max(1.0, *(value for arms in self.groups.values() for value in arms.values()))

    @property
    def colours(self) -> dict[str, str]:
        arms = dict.fromkeys(name for members in self.groups.values() for name in members)
        return dict(zip(arms, COLOURS, strict=False))


def speed_pictures(comparison: Comparison, mark: str) -> Iterator[Picture]:
    """The speed-up by task and by batch size, where there are several."""
    here = [one for one in comparison.measures if one.conditions == comparison.conditions]
    by_task = _groups(comparison, [one for one in here if one.task], lambda one: str(one.task))
    if len(by_task) > 1:
        yield _picture(comparison, by_task, f"Speed-up by task{mark}", comparison.conditions)
    shared = here[0].under()
    alike = [one for one in comparison.measures if one.whole and one.under() == shared]
    by_batch = _groups(comparison, alike, lambda one: f"batch {one.figures.batch_size}")
    if len(by_batch) > 1:
        title, caption = f"Speed-up by batch size{mark}", f"{shared}; over all tasks"
        yield _picture(comparison, by_batch, title, caption)


def _groups(
    comparison: Comparison, measures: Sequence[ArmRow], key: Callable[[ArmRow], str]
) -> dict[str, dict[str, float]]:
    """{group: {arm: speed-up}}, the fastest arms only, plain decoding left to the line."""
    names, found = chart_names(comparison), dict[str, dict[str, float]]()
    for one in measures:
        if one.name in names and one.speedup is not None:
            found.setdefault(key(one), {})[names[one.name]] = one.speedup
    return found


def chart_names(comparison: Comparison) -> dict[str, str]:
    """The fastest arms by name, and what a chart calls them: the arm alone where that is enough."""
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
