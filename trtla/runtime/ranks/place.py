"""The rank of this process, from torchrun's environment. Imports no torch: most run alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

from trtla.errors import UsageError

OPENING = timedelta(minutes=15)
"""The longest wait of a rank for the others while the model is opened."""


@dataclass(frozen=True, slots=True)
class Place:
    """The rank of this process and the numbers of ranks."""

    rank: int
    size: int
    on_machine: int
    local_rank: int = 0


def torchrun_place() -> Place | None:
    """Read torchrun's environment; None: it did not start this process."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(name in os.environ for name in names):
        return None
    size, on_machine = _number("WORLD_SIZE"), _number("LOCAL_WORLD_SIZE", 1)
    if size < 2:
        return None
    _check_between("RANK", 0, _number("RANK"), size - 1)
    _check_between("LOCAL_WORLD_SIZE", 1, on_machine, size)
    return Place(_number("RANK"), size, on_machine, _number("LOCAL_RANK", 0))


def _check_between(name: str, least: int, value: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(
            f"{name} is {value}, and WORLD_SIZE is {most + 1 - least}",
            f"start the ranks with torchrun, which sets {name}",
        )


def _number(name: str, otherwise: int | None = None) -> int:
    value = os.environ[name] if otherwise is None else os.environ.get(name, str(otherwise))
    if not value.isdecimal():
        raise UsageError(f"{name} is {value!r}, not a number", "start the ranks with torchrun")
    return int(value)
