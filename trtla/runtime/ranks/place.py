"""Which rank this process is, as torchrun says it. Imports no torch: most are the only one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

from trtla.errors import UsageError

OPENING = timedelta(minutes=15)
"""How long a rank waits for the others while the model is opened."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank this process is."""

    rank: int
    size: int
    on_machine: int
    local_rank: int = 0


def torchrun_place() -> Place | None:
    """What torchrun says of this process; None: it did not start it."""
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
