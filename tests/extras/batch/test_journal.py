"""The journal: what was written whole is found again, in order, and nothing else is."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtla.extras.batch.journal import Journal, Record

LINES = [b'{"id": "3"}', '{"text": "é\u2028 x"}'.encode(), b"{}", b'{"id": "1", "more": "a b c"}']


def records() -> list[Record]:
    return [Record(n, n == 2, n, 2 * n, LINES[i], 5, n, 4 + n) for i, n in enumerate((3, 1, 4, 2))]


def filled(path: Path, key: str = "job") -> bytes:
    with Journal(path, key, 5) as journal:
        for record in records():
            journal.add(record)
    return path.read_bytes()


def test_records_come_back_in_the_order_of_the_input(tmp_path: Path) -> None:
    filled(tmp_path / "journal")
    with Journal(tmp_path / "journal", "job", 5) as journal:
        assert [number in journal for number in range(1, 6)] == [True, True, True, True, False]
        assert [one.number for one in journal.ordered(failed=False)] == [1, 3, 4]
        assert list(journal.ordered(failed=True)) == [records()[3]]
        counts = journal.counts
    totals = (counts.answered, counts.failed, counts.prompt_tokens, counts.output_tokens)
    assert totals == (3, 1, 10, 20)
    assert (counts.steps, counts.accepted, counts.tokens_per_step) == (20, 10, 26 / 20)


def test_what_a_signal_finds_written_but_not_counted_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal(tmp_path / "journal", "job", 5) as journal:
        journal.add(records()[0])
        with monkeypatch.context() as patch:
            patch.setattr(journal, "_note", lambda *_: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                journal.add(records()[1])
        assert (journal.counts.done, journal.kept()) == (1, 2)
    with Journal(tmp_path / "journal", "job", 5) as journal:
        assert journal.counts.done == 2


def test_a_torn_end_is_dropped_wherever_it_tears(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    whole = filled(path)
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with Journal(path, "job", 5) as journal:
            kept = sum(end <= cut for end in ends)
            assert journal.counts.done == kept
            for record in records()[kept:]:
                journal.add(record)
        assert path.read_bytes() == whole


def test_a_checksum_in_capitals_is_damage_too(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    lines = filled(path).splitlines(keepends=True)
    fields = lines[0].split(b" ", 8)
    fields[7] = fields[7].upper()
    damaged = b" ".join(fields)
    assert damaged != lines[0]
    path.write_bytes(damaged + b"".join(lines[1:]))
    with Journal(path, "job", 5) as journal:
        assert journal.counts.done == 0


@given(data=st.data())
def test_a_damaged_record_and_what_follows_it_are_done_again(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "journal"
    whole = bytearray(filled(path))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(whole))
    before = bytes(whole[:place]).count(b"\n")
    with Journal(path, "job", 5) as journal:
        assert journal.counts.done == before


def test_another_jobs_journal_counts_for_nothing(tmp_path: Path) -> None:
    filled(tmp_path / "journal", "another")
    with Journal(tmp_path / "journal", "job", 5) as journal:
        assert journal.counts.done == 0
    assert (tmp_path / "journal").read_bytes() == b""


def test_lines_that_the_input_has_not_are_dropped(tmp_path: Path) -> None:
    filled(tmp_path / "journal")
    with Journal(tmp_path / "journal", "job", 2) as journal:
        assert journal.counts.done == 0
