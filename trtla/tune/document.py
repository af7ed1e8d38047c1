"""A tuning as one JSON document, which `trtla report` reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtla.tune.prediction import Row
    from trtla.tune.recommendation import Recommendation
    from trtla.tune.settings import Tuned
    from trtla.tune.verification import Verified

SCHEMA_VERSION = 1


def document(
    tuned: Tuned, engine: str, command: str, environment: dict[str, Any]
) -> dict[str, Any]:
    """The document.

    Args:
        engine: what the answer is for, as it was given.
        command: the command line.
        environment: machine and versions, as in bench's document.
    """
    cost = tuned.cost
    return {
        "schema_version": SCHEMA_VERSION,
        "command": "tune",
        "argv": command,
        "environment": environment,
        "engine": engine,
        "executor": tuned.executor,
        "cost": {
            "source": cost.source,
            "note": cost.note,
            "rows": [
                {"sequences": count, "points": [list(point) for point in points]}
                for count, points in cost.table.rows
            ],
            "knee": cost.knee,
        },
        "grid": [_grid_row(row) for row in tuned.rows],
        "verified": [_verified(one) for one in tuned.verified if one.lookahead is not None],
        "alternatives": [_other(one) for one in tuned.verified if one.lookahead is None],
        "recommendation": _recommendation(tuned.recommendation),
        "finished": tuned.finished,
        "time_s": round(tuned.time_s, 1),
    }


def _grid_row(row: Row) -> dict[str, Any]:
    return {
        "lookahead": list(row.lookahead.as_tuple()),
        "category": row.category,
        "batch_size": row.batch_size,
        "tokens_per_step": round(row.tokens_per_step, 4),
        "fed_per_step": round(row.fed_per_step, 2),
        "acceptance": row.acceptance,
        "predicted_speedup": round(row.predicted_speedup, 4),
    }


def _verified(one: Verified) -> dict[str, Any]:
    triple = one.lookahead
    return {
        "lookahead": None if triple is None else list(triple.as_tuple()),
        "category": one.category,
        "batch_size": one.batch_size,
        "predicted_speedup": _rounded(one.predicted_speedup),
        "measured_speedup": _rounded(one.measured_speedup),
        "error_percent": _rounded(one.error_percent),
    }


def _other(one: Verified) -> dict[str, Any]:
    figures = {key: value for key, value in _verified(one).items() if key != "lookahead"}
    return {"drafter": one.name, **figures}


def _recommendation(found: Recommendation) -> dict[str, Any]:
    return {
        "lookahead": list(found.lookahead.as_tuple()),
        "batch_size": found.batch_size,
        "predicted_speedup": _rounded(found.predicted_speedup),
        "measured_speedup": _rounded(found.measured_speedup),
        "by_batch_size": _each(found.by_batch_size, "batch_size"),
        "by_category": _each(found.by_category, "category"),
    }


def _each(rows: Sequence[Row], axis: str) -> list[dict[str, Any]]:
    return [
        {
            axis: getattr(row, axis),
            "lookahead": list(row.lookahead.as_tuple()),
            "predicted_speedup": _rounded(row.predicted_speedup),
        }
        for row in rows
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
