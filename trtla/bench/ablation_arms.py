"""The ablation's arms: which drafter with which settings, and the cells that tell them apart.

Torch-free. The defaults are the four arms that speculative-decoding demos compare (plain, a fixed
gamma, EGAG, n-grams), and beside them prompt lookup, lookahead, lookahead auto and a chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from trtla.settings.drafting import DRAFT_PREFIX, DrafterSettings, NgramKind
from trtla.settings.lookahead import AUTOREGRESSIVE, Lookahead, LookaheadConfig

AR = "ar"
METHODS = (
    AR, "sd", "egag", "nasd", "prompt-lookup", "lookahead", "lookahead-auto", "chain"
)  # fmt: skip
"""The arms, in the order in which they take turns."""

NEEDS_DRAFT_MODEL = ("sd", "egag", "chain")


@dataclass(frozen=True, slots=True)
class Grid:
    """What the arms are set to; every combination of an arm's lists is an arm of its own.

    Raises:
        UsageError: `arms` refuses values that are out of range.
    """

    methods: tuple[str, ...] = METHODS
    """`ar` is always there and always first."""
    draft_model: str | None = None
    gammas: tuple[int, ...] = (4,)
    """Of sd, nasd, prompt-lookup and the chain."""
    gamma_min: int = 1
    gamma_maxs: tuple[int, ...] = (6,)
    emas: tuple[float, ...] = (0.9,)
    ngram_kinds: tuple[NgramKind, ...] = ("basic",)
    ngram_orders: tuple[int, ...] = (3,)
    top_k_fillers: tuple[int, ...] = (3,)
    triples: tuple[LookaheadConfig, ...] = ()
    """Of lookahead; empty: the engine's own. The chain and auto have the first."""


@dataclass(frozen=True, slots=True)
class AblationArm:
    """One way of decoding."""

    method: str
    drafting: DrafterSettings
    lookahead: Lookahead = AUTOREGRESSIVE
    cells: dict[str, object] = field(default_factory=dict)
    """The row's cells from `gamma_policy` to `guesses`, and `drafter`."""


def arms(grid: Grid, own: LookaheadConfig) -> list[AblationArm]:
    """The arms of a grid, `ar` first.

    Args:
        own: the engine's triple.

    Raises:
        UsageError: a value is out of its range.
    """
    triples = grid.triples or (own,)
    made = {
        AR: _plain,
        "sd": _draft_model,
        "egag": _egag,
        "nasd": _ngram,
        "prompt-lookup": _prompt_lookup,
        "lookahead": _lookahead,
        "lookahead-auto": _auto,
        "chain": _chain,
    }
    wanted = [name for name in METHODS if name == AR or name in grid.methods]
    return [arm for name in wanted for arm in made[name](grid, triples)]


def _plain(grid: Grid, triples: Sequence[LookaheadConfig]) -> Iterator[AblationArm]:
    yield AblationArm(AR, DrafterSettings(("none",)))


def _draft(grid: Grid) -> str:
    return f"{DRAFT_PREFIX}{grid.draft_model or ''}"


def _name(grid: Grid) -> str:
    """The draft model's folder, without the way to it."""
    return Path(grid.draft_model or "").resolve().name


def _draft_model(grid: Grid, triples: Sequence[LookaheadConfig]) -> Iterator[AblationArm]:
    for gamma in grid.gammas:
        cells = {"gamma_policy": "fixed", "gamma": gamma, "drafter": _name(grid)}
        settings = DrafterSettings((_draft(grid),), gamma=gamma)
        yield AblationArm("sd", settings, cells=cells)


def _egag(grid: Grid, triples: Sequence[LookaheadConfig]) -> Iterator[AblationArm]:
    for most, ema in product(grid.gamma_maxs, grid.emas):
        bounds: dict[str, object] = {"gamma_min": grid.gamma_min, "gamma_max": most}
        cells = {"gamma_policy": "egag", **bounds, "ema_beta": ema, "drafter": _name(grid)}
        settings = DrafterSettings(
            (_draft(grid),), most, egag=True, gamma_min=grid.gamma_min, gamma_max=most, ema=ema
        )
        yield AblationArm("egag", settings, cells=cells)


def _ngram(grid: Grid, triples: Sequence[LookaheadConfig]) -> Iterator[AblationArm]:
    for gamma, kind, order, filler in product(
        grid.gammas, grid.ngram_kinds, grid.ngram_orders, grid.top_k_fillers
    ):
        cells = {"gamma_policy": "fixed", "gamma": gamma, **_ngram_cells(kind, order, filler)}
        settings = DrafterSettings(
            ("ngram",), gamma, ngram_kind=kind, ngram_order=order, top_k_filler=filler
        )
        yield AblationArm("nasd", settings, cells=cells)


def _ngram_cells(kind: NgramKind, order: int, filler: int) -> dict[str, object]:
    return {"ngram_kind": kind, "ngram_n": order, "top_k_filler": filler}


def _prompt_lookup(grid: Grid, triples: Sequence[LookaheadConfig]) -> Iterator[AblationArm]:
    for gamma in grid.gammas:
        cells: dict[str, object] = {"gamma_policy": "fixed", "gamma": gamma}
        yield AblationArm("prompt-lookup", DrafterSettings(("prompt-lookup",), gamma), cells=cells)


def _triple_cells(triple: LookaheadConfig) -> dict[str, object]:
    return dict(zip(("window", "ngram", "guesses"), triple.as_tuple(), strict=True))


def _lookahead(grid: Grid, triples: Sequence[LookaheadConfig]) -> Iterator[AblationArm]:
    for triple in triples:
        yield AblationArm("lookahead", DrafterSettings(), triple, _triple_cells(triple))


def _auto(grid: Grid, triples: Sequence[LookaheadConfig]) -> Iterator[AblationArm]:
    """Its triple is the engine's, which bounds every step."""
    yield AblationArm("lookahead-auto", DrafterSettings(), "auto")


def _chain(grid: Grid, triples: Sequence[LookaheadConfig]) -> Iterator[AblationArm]:
    for gamma, order, filler in product(grid.gammas, grid.ngram_orders, grid.top_k_fillers):
        kind, names = grid.ngram_kinds[0], (_draft(grid), "lookahead", "ngram")
        settings = DrafterSettings(
            names, gamma, ngram_kind=kind, ngram_order=order, top_k_filler=filler
        )
        cells = {
            "gamma_policy": "fixed",
            "gamma": gamma,
            **_ngram_cells(kind, order, filler),
            **_triple_cells(triples[0]),
            "drafter": _name(grid),
        }
        yield AblationArm("chain", settings, triples[0], cells)
