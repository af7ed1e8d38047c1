"""The journal survives being cut off, and passes lines of other circumstances over."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtla.errors import UsageError
from trtla.extras.bench.journal import Measurements, fingerprint


def opened(folder: Path, key: str = "a") -> Measurements:
    return Measurements(folder / "kept.jsonl", key, "--output-dir")


def test_what_was_put_is_there_for_the_next_one_with_the_same_key(tmp_path: Path) -> None:
    opened(tmp_path).put("run 1", {"steps": 3})
    assert opened(tmp_path).entries == {"run 1": {"steps": 3}}
    assert opened(tmp_path, "b").get("run 1") is None


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_was_cut_off_is_passed_over_and_written_behind(tmp_path, cut) -> None:
    first = opened(tmp_path)
    first.put("run 1", {"steps": 3})
    first.put("run 2", {"steps": 4})
    first.path.write_bytes(first.path.read_bytes()[:-cut])
    second = opened(tmp_path)
    assert second.get("run 1") == {"steps": 3}
    assert second.get("run 2") in (None, {"steps": 4})
    second.put("run 3", 5)
    third = opened(tmp_path)
    assert (third.get("run 1"), third.get("run 3")) == ({"steps": 3}, 5)


def test_foreign_lines_do_no_harm_and_a_full_disk_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "kept.jsonl").write_bytes(b'{"a": 1}\n[]\n\xff\xfe\nnull\n')
    assert opened(tmp_path).entries == {}
    with pytest.raises(UsageError, match="cannot be written"):
        opened(tmp_path / "nowhere").put("run 1", 1)


def test_fingerprints_follow_the_facts() -> None:
    assert fingerprint({"a": 1, "b": (2, 3)}) == fingerprint({"b": [2, 3], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
