"""The journal: what was written whole is found again, in order, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from trtla.extras.batch.journal import Journal, Record

LINES = [b'{"id": "3"}', '{"text": "é\u2028 x"}'.encode(), b"{}", b'{"id": "1", "more": "a b c"}']
RECORDS = [Record(n, n == 2, n, 2 * n, 5, 4 + n, LINES[i]) for i, n in enumerate((3, 1, 4, 2))]


def filled(path: Path, records: Iterable[Record] = RECORDS) -> bytes:
    with closing(Journal(path)) as journal:
        for record in records:
            journal.add(record)
    return path.read_bytes()


def test_records_come_back_in_the_order_of_the_input(tmp_path: Path) -> None:
    filled(tmp_path / "journal")
    with closing(Journal(tmp_path / "journal")) as journal:
        assert [number in journal for number in range(1, 6)] == [True, True, True, True, False]
        assert [one.number for one in journal.ordered(failed=False)] == [1, 3, 4]
        assert list(journal.ordered(failed=True)) == [RECORDS[3]]
        counts = journal.counts
    totals = (counts.answered, counts.failed, counts.prompt_tokens, counts.output_tokens)
    assert totals == (3, 1, 10, 20)
    assert (counts.steps, counts.tokens_per_step) == (20, 26 / 20)


def test_what_is_torn_or_damaged_is_dropped_with_all_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    whole = filled(path)
    for place, byte in enumerate(whole):
        before = whole[:place].count(b"\n")
        changed = bytes([byte ^ 0x20])
        for damaged in (whole[:place], whole[:place] + changed + whole[place + 1 :]):
            path.write_bytes(damaged)
            with closing(Journal(path)) as journal:
                assert journal.counts.done == before
            assert filled(path, RECORDS[before:]) == whole
