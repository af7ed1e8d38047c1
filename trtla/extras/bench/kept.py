"""Turns that a journal keeps, from which an interrupted measurement resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from trtla.extras.bench.journal import Measurements, fingerprint
from trtla.measuring.arms import Arm, ArmRun
from trtla.measuring.turns import Batch, Kept
from trtla.results.rows import Cell


class JournalledTurns(Kept):
    """The turns of a journal, which are not taken again.

    The times of a turn belong together: if one of its arms is missing, all decode it again.
    """

    def __init__(self, journal: Measurements) -> None:
        self._journal = journal

    @staticmethod
    def _name(cell: Cell, batch: Batch) -> str:
        key = fingerprint({"cell": str(cell), "round": batch.round, "work": str(batch.work)})
        again = f" {batch.again}" if batch.again else ""
        return f"turn {cell.batch_size} {batch.round} {key}{again}"

    def has(self, cell: Cell, batch: Batch, arms: Sequence[Arm]) -> bool:
        """Return whether all the arms have decoded the batch."""
        return self._of(cell, batch, arms) is not None

    def get(self, cell: Cell, batch: Batch, arms: Sequence[Arm]) -> dict[str, ArmRun] | None:
        """Return the runs of all the arms; None: the turn is to be taken."""
        dumped = self._of(cell, batch, arms)
        if dumped is None:
            return None
        return {arm.label: _RUN.validate_python(dumped[arm.key]) for arm in arms}

    def put(
        self, cell: Cell, batch: Batch, runs: Mapping[str, ArmRun], arms: Sequence[Arm]
    ) -> None:
        """Append a turn to the journal."""
        dumped = {arm.key: _RUN.dump_python(runs[arm.label], mode="json") for arm in arms}
        _, name = self._fields(self._name(cell, batch))
        self._journal.put(name, dumped)

    def _of(self, cell: Cell, batch: Batch, arms: Sequence[Arm]) -> Mapping[str, Any] | None:
        fields, _ = self._fields(self._name(cell, batch))
        return next((runs for runs in fields if all(arm.key in runs for arm in arms)), None)

    def _fields(self, name: str) -> tuple[list[Mapping[str, Any]], str]:
        """Return the turns of a name, each with other arms, and the name for the next one."""
        turns: list[Mapping[str, Any]] = []
        while True:
            entry = f"{name} field {len(turns) + 1}" if turns else name
            kept = self._journal.get(entry)
            if not kept:
                return turns, entry
            turns.append(kept)


_RUN = TypeAdapter(ArmRun)
