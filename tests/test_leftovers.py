"""What a killed process leaves in the user's cache goes with the next write there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trtla.files import temporary_folder, user_cache, write_whole
from trtla.leftovers import is_temporary, locked, remove_abandoned, temporary_name


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (user_cache() / "panels").mkdir(parents=True)
    return user_cache()


def aged(path: Path) -> Path:
    os.utime(path, (1, 1))
    return path


def left_in(folder: Path) -> list[Path]:
    """A file and a folder, as killed processes leave them."""
    file, made = temporary_name("a.json"), temporary_name("compile")
    (folder / file).write_text("half")
    (folder / made).mkdir()
    (folder / made / "a.o").write_text("half")
    return [aged(folder / name) for name in (file, made)]


@pytest.mark.parametrize("where", [".", "panels"])
def test_a_write_into_the_cache_removes_what_is_abandoned(cache: Path, where: str) -> None:
    left = left_in(cache / where)
    write_whole(cache / "whole", "whole")
    assert not any(path.exists() for path in left)


def test_a_temporary_folder_in_the_cache_removes_what_is_abandoned(cache: Path) -> None:
    left = left_in(cache / "panels")
    with temporary_folder(cache, "compile"):
        assert not any(path.exists() for path in left)


def test_what_is_new_or_locked_or_not_ours_stays(cache: Path) -> None:
    others = [aged(write_whole(cache / name, "")) for name in (".keep", ".a.0123", "a.json")]
    new, (held, *_) = cache / temporary_name("new"), left_in(cache)
    new.write_text("half")
    with locked(held):
        remove_abandoned(filter(is_temporary, cache.iterdir()))
    assert all(path.exists() for path in (new, held, *others))


def test_what_lies_elsewhere_is_nobodys_business(cache: Path, tmp_path: Path) -> None:
    left = left_in(tmp_path)
    write_whole(tmp_path / "whole", "whole")
    assert all(path.exists() for path in left)
    write_whole(tmp_path / "a.json", "whole")
    assert [path.exists() for path in left] == [False, True], "one is of the same name"


def test_what_is_being_written_is_not_abandoned(cache: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a"
        (part,) = cache.glob(".whole.*")
        aged(part)
        remove_abandoned(filter(is_temporary, cache.iterdir()))
        yield b"b"

    with temporary_folder(cache) as folder:
        aged(folder)
        assert write_whole(cache / "whole", pieces()).read_text() == "ab"
        assert folder.is_dir()
    assert not folder.exists()


def test_what_a_killed_process_has_locked_is_abandoned(cache: Path) -> None:
    code = """
import os, signal
from trtla.files import temporary_folder, user_cache, write_whole
def pieces():
    yield b"a"
    os.kill(os.getpid(), signal.SIGKILL)
with temporary_folder(user_cache()):
    write_whole(user_cache() / "panels" / "whole", pieces())
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    left = [aged(path) for path in (*cache.glob(".new.*"), *cache.glob("panels/.whole.*"))]
    assert len(left) == 2
    write_whole(cache / "whole", "whole")
    assert not any(path.exists() for path in left)
