"""Measurements survive being cut off, and those of other circumstances are passed over."""

from __future__ import annotations

import pytest

from trtla.errors import UsageError
from trtla.tune.measurements import FILE, Measurements, check_folder, fingerprint


def test_what_was_put_is_there_for_the_next_one(tmp_path):
    Measurements(tmp_path, "a").put("run 1", {"steps": 3})
    again = Measurements(tmp_path, "a")
    assert (again.get("run 1"), again.resumed) == ({"steps": 3}, 1)
    assert again.names("run ") == ["run 1"]
    assert again.names("round ") == []


def test_another_key_sees_nothing(tmp_path):
    Measurements(tmp_path, "a").put("run 1", 1)
    assert Measurements(tmp_path, "b").get("run 1") is None


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_was_cut_off_is_passed_over_and_written_behind(tmp_path, cut):
    first = Measurements(tmp_path, "a")
    first.put("run 1", {"steps": 3})
    first.put("run 2", {"steps": 4})
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-cut])
    second = Measurements(tmp_path, "a")
    assert second.get("run 1") == {"steps": 3}
    assert second.get("run 2") in (None, {"steps": 4})
    second.put("run 3", 5)
    third = Measurements(tmp_path, "a")
    assert (third.get("run 1"), third.get("run 3")) == ({"steps": 3}, 5)


def test_foreign_lines_do_no_harm(tmp_path):
    (tmp_path / FILE).write_bytes(b'{"a": 1}\n[]\n\xff\xfe\nnull\n')
    assert Measurements(tmp_path, "a").resumed == 0


def test_fingerprints_follow_the_facts():
    assert fingerprint({"a": 1, "b": (2, 3)}) == fingerprint({"b": [2, 3], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    check_folder(tmp_path / "new" / "folder")
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(UsageError, match="cannot be written to"):
        check_folder(blocked / "folder")
