"""What scripts/measure_quantised.py has found, and its tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
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


def _median(values: Sequence[float], digits: int = 1, factor: float = 1.0) -> str:
    return f"{statistics.median(values) * factor:.{digits}f}" if values else "-"


def _ratio(above: Sequence[float], below: Sequence[float]) -> str:
    """The median of the rounds' ratios."""
    return _median([a / b for a, b in zip(above, below, strict=False)], 2)


def print_figures(files: Sequence[File], reference: float | None) -> None:
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
            cells = [file.name, name, size, known, _median(one.plain), _median(one.drafted)]
            steps = (_median(seconds, 2, 1e3) for seconds in one.steps.values())
            rows.append([*cells, *steps, _median(one.prompt, 0, 1e3)])
    _table(head, rows)


def print_ratios(files: Sequence[File], reference: float | None) -> None:
    """trtla against itself on the first file, and against llama.cpp on the same one."""
    base = files[0].found[TRTLA]
    first = f"of {files[0].name}"
    head = ["trtla", f"plain, {first}", "plain, of llama.cpp", "drafted, of plain"]
    head += [f"step of {size}, steps of 1 {first}" for size in SIZES[1:]]
    head += ["prompt, of llama.cpp", "perplexity, of llama.cpp", "of the reference"]
    rows = []
    for file in files:
        own, peer = file.found[TRTLA], file.found.get(LLAMA_CPP, Figures(None, None))
        cells = [file.name, _ratio(own.plain, base.plain), _ratio(own.plain, peer.plain)]
        cells += [_ratio(own.drafted, own.plain)]
        cells += [_ratio(own.steps[size], base.steps[1]) for size in SIZES[1:]]
        cells += [_ratio(peer.prompt, own.prompt)]
        rows.append([*cells, *(_percent(own.perplexity, p) for p in (peer.perplexity, reference))])
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
        place = _median([one.place for one in file.parted], 0)
        margins = [[one.trtla for one in file.parted], [one.llama_cpp for one in file.parted]]
        rows.append([file.name, equal, place, *(f"{max(m, default=0):.3f}" for m in margins)])
    if rows:
        _table([*head, LLAMA_CPP], rows)
