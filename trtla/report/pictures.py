"""The page's charts: which figures go into which chart, and what is omitted for room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trtla.charts import COLOURS
from trtla.report.figures import ArmRow, Comparison, grouped, over_tasks
from trtla.results.documents import Tune

_MOST_ARMS = len(COLOURS)


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
        """Of each arm."""
        arms = dict.fromkeys(name for members in self.groups.values() for name in members)
        return dict(zip(arms, COLOURS, strict=False))


def speed_pictures(comparison: Comparison, mark: str) -> Iterator[Picture]:
    """The speed-up by task and by batch size, where there are several."""
    here = [one for one in comparison.measures if one.conditions == comparison.conditions]
    by_task = _groups(comparison, here, lambda one: one.task)
    if len(by_task) > 1:
        yield _picture(comparison, by_task, f"Speed-up by task{mark}", comparison.conditions)
    shared = here[0].under()
    alike = [one for one in comparison.measures if one.under() == shared]
    by_batch = _groups(comparison, alike, lambda one: f"batch {one.figures.batch_size}")
    if len(by_batch) > 1:
        caption = f"{shared}; means over tasks"
        yield _picture(comparison, by_batch, f"Speed-up by batch size{mark}", caption)


def _groups(
    comparison: Comparison, measures: Sequence[ArmRow], key: Callable[[ArmRow], str | None]
) -> dict[str, dict[str, float]]:
    """{group: {arm: mean speed-up}}, the fastest arms only, plain decoding left to the line."""
    kept = chart_names(comparison)
    labels = dict.fromkeys(label for one in measures if (label := key(one)) is not None)
    found: dict[str, dict[str, float]] = {}
    for label in labels:
        drafted = [one for one in measures if key(one) == label and not one.plain]
        arms = grouped(drafted, lambda one: one.name)
        for name, shown in ((name, kept[name]) for name in kept if name in arms):
            if (ratio := over_tasks(arms[name])) is not None:
                found.setdefault(label, {})[shown] = ratio
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


def batch_of(tune: Tune) -> int:
    """The batch size that tune is about: the recommended one, else the smallest."""
    least = min((point.batch_size for point in tune.grid), default=1)
    return tune.recommendation.batch_size or least
