"""Turns whose rows go to a table: what the table has is not decoded again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from trtla.extras.bench.decoding_table import DecodingTable
from trtla.extras.bench.documents import Decoding
from trtla.extras.bench.keys import fingerprint
from trtla.extras.bench.rounds import Watch, decodings
from trtla.measuring.arms import Arm, PeerArm
from trtla.measuring.hardware import Hardware
from trtla.measuring.turns import Batch, CellRuns, Score, Turn, Work, alternate
from trtla.results.rows import Cell
from trtla.runtime.device import resolve_device


class Appending:
    """Measures batches into a table.

    Args:
        facts: the circumstances that all decodings share, the machine among them.
        peers: the circumstances of peers' decodings alone.
        columns: values of a row that no measurement has: machine and model.
    """

    def __init__(
        self,
        table: DecodingTable,
        facts: Mapping[str, object],
        peers: Mapping[str, object],
        columns: Mapping[str, str],
    ) -> None:
        self._table, self._facts, self._peers = table, facts, peers
        self._columns = columns
        self.keys: list[str] = []
        """Keys of the decodings so far, whether they were there or not."""

    def key(self, cell: Cell, batch: Batch, arm: Arm) -> str:
        """Return the key of a decoding."""
        # Peers choose their settings as they warm up.
        own = {"arm": arm.name, **self._peers} if isinstance(arm, PeerArm) else {"arm": arm.key}
        work = {"cell": str(cell), "work": str(batch.work), "again": batch.again}
        return fingerprint({**self._facts, **work, **own})

    def rows(self) -> list[Decoding]:
        """Return the decodings so far."""
        return [self._table.rows[key] for key in self.keys]

    def present(self, cell: Cell, batches: Sequence[Batch], arms: Sequence[Arm]) -> int:
        """Count the decodings that the table has."""
        return sum(self.key(cell, b, arm) in self._table.rows for b in batches for arm in arms)

    def measure(
        self,
        cell: Cell,
        arms: Sequence[Arm],
        batches: Sequence[Batch],
        first: Work,
        hardware: Hardware,
        score: Score,
        watch: Watch,
    ) -> None:
        """Decode what the table lacks, and append the rows of each turn.

        Times of a turn belong together: a missing arm decodes next to plain decoding.
        """
        all_present = self.present(cell, batches, arms) == len(batches) * len(arms)
        for arm in arms:
            if not all_present:
                arm.warm_up(*first)
            watch.saw(arm, None)
        for _, group in groupby(batches, key=attrgetter("round")):
            for arm in arms:
                arm.begin_round()
            for batch in group:
                keys = {arm.label: self.key(cell, batch, arm) for arm in arms}
                missing = [arm for arm in arms if keys[arm.label] not in self._table.rows]
                if missing:
                    turn = dict.fromkeys((arms[0], *missing))
                    self._take(cell, list(turn), batch, keys, hardware, score, watch.saw)
                for arm in arms:
                    if arm not in missing:
                        watch.saw(arm, None)
                self.keys += keys.values()

    def _take(
        self,
        cell: Cell,
        arms: Sequence[Arm],
        batch: Batch,
        keys: Mapping[str, str],
        hardware: Hardware,
        score: Score,
        saw: Callable[..., None],
    ) -> None:
        runs = {}
        for arm, run in alternate(arms, [batch.work], resolve_device(cell.device)):
            runs[arm.label] = run
            if keys[arm.label] not in self._table.rows:
                saw(arm, run)
        settings = {arm.label: arm.setting for arm in arms}
        measured = CellRuns(cell, {arm.label: arm for arm in arms}, [Turn(batch, runs)], settings)
        rows = zip(arms, decodings(measured, hardware, score), strict=True)
        self._table.append(list(self._new(rows, keys)))

    def _new(
        self, rows: Iterator[tuple[Arm, Decoding]], keys: Mapping[str, str]
    ) -> Iterator[Decoding]:
        for arm, row in rows:
            if (key := keys[arm.label]) not in self._table.rows:
                yield row.model_copy(update={**self._columns, "key": key})
