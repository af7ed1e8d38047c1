"""What scripts/measure_quantised.py has found, and its tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from measure_quantised_programs import Program

SIZES = (1, 4, 16, 64)
"""Fed tokens of the steps."""
TRTLA, LLAMA_CPP = "trtla", "llama.cpp"


@dataclass(slots=True)
class Figures:
    """What one program gave on one file; lists have an item a round."""

    weight_bytes: int | None
    weight_type: str | None
    perplexity: float | None = None
    plain: list[float] = field(default_factory=list)
    """Tokens a second."""
    drafted: list[float] = field(default_factory=list)
    drafted_equal: bool = True
    """Whether drafting changed no text."""
    prompt: list[float] = field(default_factory=list)
    """Seconds, as the steps."""
    steps: dict[int, list[float]] = field(default_factory=lambda: {size: [] for size in SIZES})


@dataclass(frozen=True, slots=True)
class Parted:
    """Two greedy texts that are not equal."""

    prompt: int
    place: int
    """The first token that differs."""
    trtla: float
    """Margins there."""
    llama_cpp: float


@dataclass(slots=True)
class File:
    """A model file and what was found."""

    name: str
    programs: dict[str, Program]
    found: dict[str, Figures]
    parted: list[Parted] | None = None


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


@dataclass(frozen=True, slots=True)
class Summary:
    """What stands for all rounds: the best one, or the median."""

    best: bool

    def time(self, seconds: Sequence[float], digits: int) -> str:
        """Seconds as milliseconds."""
        return self._of(seconds, min, digits, 1e3)

    def rate(self, rates: Sequence[float]) -> str:
        """Tokens a second."""
        return self._of(rates, max, 1)

    def faster(self, seconds: Sequence[float], than: Sequence[float]) -> str:
        """How many times as fast."""
        return self.ratio([1 / one for one in seconds], [1 / one for one in than])

    def ratio(self, rates: Sequence[float], to: Sequence[float]) -> str:
        """Of the best rates, or the median of the rounds' ratios."""
        if self.best and rates and to:
            return f"{max(rates) / max(to):.2f}"
        return self._of([a / b for a, b in zip(rates, to, strict=False)], max, 2)

    def _of(
        self, values: Sequence[float], best: Callable[..., float], digits: int, factor: float = 1
    ) -> str:
        chosen = best if self.best else statistics.median
        return f"{chosen(values) * factor:.{digits}f}" if values else "-"


def print_figures(files: Sequence[File], reference: float | None, summary: Summary) -> None:
    """Two rows a file, one for each program."""
    if reference is not None:
        print(f"\nperplexity of the reference in float32: {reference:.4f}")
    head = ["file", "program", "weights, MB", "perplexity", "plain, tokens/s", "drafted"]
    head += [*(f"step of {size}, ms" for size in SIZES), "prompt, ms"]
    rows = []
    for file in files:
        for name, one in file.found.items():
            size = "-" if one.weight_bytes is None else f"{one.weight_bytes / 1e6:.1f}"
            known = "-" if one.perplexity is None else f"{one.perplexity:.4f}"
            rates = summary.rate(one.plain), summary.rate(one.drafted)
            steps = (summary.time(seconds, 2) for seconds in one.steps.values())
            rows.append([file.name, name, size, known, *rates, *steps, summary.time(one.prompt, 0)])
    _table(head, rows)


def print_ratios(files: Sequence[File], reference: float | None, summary: Summary) -> None:
    """trtla against itself on the first file, and against llama.cpp on the same one."""
    base = files[0].found[TRTLA]
    head = ["trtla", "plain / first file's", "plain / llama.cpp's", "drafted / plain"]
    head += [f"step of {size} / first file's of 1" for size in SIZES[1:]]
    head += ["prompt, times as fast as llama.cpp"]
    head += ["perplexity against llama.cpp's", "against the reference's"]
    rows = []
    for file in files:
        own, peer = file.found[TRTLA], file.found.get(LLAMA_CPP, Figures(None, None))
        cells = [summary.ratio(own.plain, to) for to in (base.plain, peer.plain)]
        cells += [summary.ratio(own.drafted, own.plain)]
        cells += [summary.faster(base.steps[1], own.steps[size]) for size in SIZES[1:]]
        cells += [summary.faster(own.prompt, peer.prompt)]
        cells += [_percent(own.perplexity, to) for to in (peer.perplexity, reference)]
        rows.append([file.name, *cells])
    _table(head, rows)
    changed = [file.name for file in files if not file.found[TRTLA].drafted_equal]
    if base.drafted:
        print(f"\ndrafting changed texts of: {', '.join(changed) or 'none'}")


def _percent(value: float | None, of: float | None) -> str:
    return "-" if value is None or of is None else f"{(value / of - 1) * 100:+.2f} %"


def print_texts(files: Sequence[File], number: int) -> None:
    """How far the greedy texts of the two programs agree."""
    head = ["file", "equal texts", "first difference, median", "largest margin there, trtla"]
    rows = []
    for file in files:
        if file.parted is None:
            continue
        equal = f"{number - len(file.parted)} of {number}"
        places = [one.place for one in file.parted]
        place = f"{statistics.median(places):g}" if places else "-"
        margins = [[one.trtla for one in file.parted], [one.llama_cpp for one in file.parted]]
        rows.append([file.name, equal, place, *(f"{max(m, default=0):.3f}" for m in margins)])
    if rows:
        _table([*head, LLAMA_CPP], rows)
