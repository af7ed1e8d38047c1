"""Whatever ends a job on its way, the same command resumes, and the files are the same bytes."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from resource import RLIMIT_FSIZE, setrlimit

import pytest

from tests.extras.batch.support import batch, content, kept, same_time, start, wait_for
from trtla.files import write_whole


@pytest.mark.deep
def test_killed_at_random_moments(undisturbed: tuple[Path, Path], tmp_path: Path) -> None:
    source, expected = undisturbed
    out, chance = tmp_path / "out", random.Random(3)
    same_time(expected, out)
    for _ in range(3):
        before = kept(out)
        child = start(source, out, "-q", most=90)
        size = before + chance.randrange(1, 30_000)
        assert wait_for(child, out, size), child.communicate()
        time.sleep(chance.random() / 50)
        child.kill()
        child.communicate()
        assert kept(out) >= before
    ran = batch(source, out)
    assert ran.code == 1
    assert " are done already\n" in ran.err
    assert content(out) == content(expected)
    assert not (out / "journal").exists()
    assert batch(source, out).code == 1
    assert content(out) == content(expected)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_signals_keep_what_is_done(
    number: signal.Signals, code: int, said: str, undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    source, expected = undisturbed
    out = tmp_path / "out"
    same_time(expected, out)
    child = start(source, out, most=90)
    assert wait_for(child, out, 5000), child.communicate()
    child.send_signal(number)
    _, err = child.communicate(timeout=120)
    assert child.returncode == code, err
    assert f"of 300 lines are done and kept in {out}; the same command resumes" in err
    assert err.rstrip().endswith(f"error: {said}")
    assert "Traceback" not in err
    size = kept(out)
    assert size >= 5000
    ran = batch(source, out)
    assert f"note: {_done(err)} of 300 lines are done already" in ran.err
    assert content(out) == content(expected)


def _done(err: str) -> str:
    line = next(line for line in err.splitlines() if "are done and kept" in line)
    return line.split()[1]


@pytest.mark.deep
def test_a_full_disk_loses_nothing(undisturbed: tuple[Path, Path], tmp_path: Path) -> None:
    source, expected = undisturbed
    out = tmp_path / "out"
    same_time(expected, out)
    for limit in (10_000, 50_000):  # of any file
        limits = (limit, limit)
        child = start(source, out, limit=lambda: setrlimit(RLIMIT_FSIZE, limits))  # noqa: B023
        _, err = child.communicate()
        assert child.returncode == 1, err
        assert err.endswith("hint: free some space: the same command resumes then\n")
        assert f"error: {out / 'journal'} cannot be written: " in err
        assert kept(out) == limit
    assert batch(source, out, "-q").code == 1
    assert content(out) == content(expected)
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock", "errors.jsonl", "job.json", "output.jsonl",
    ]  # fmt: skip


@pytest.mark.deep
def test_what_a_kill_left_of_a_file_is_removed(
    undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    source, expected = undisturbed
    out = tmp_path / "out"
    same_time(expected, out)
    (out / ".output.jsonl.abc").write_text("half")
    assert batch(source, out, "-q").code == 1
    assert not (out / ".output.jsonl.abc").exists()


@pytest.mark.deep
def test_a_kill_between_the_last_line_and_the_output(
    undisturbed: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, expected = undisturbed
    out = tmp_path / "out"
    same_time(expected, out)

    def killed(path: Path, *args: object, **more: object) -> None:
        if path.name == "errors.jsonl":
            raise KeyboardInterrupt
        write_whole(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr("trtla.extras.batch.job.write_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            batch(source, out, "-q")
    assert (out / "output.jsonl").exists()
    assert not (out / "errors.jsonl").exists()
    ran = batch(source, out)
    assert "note: 300 of 300 lines are done already" in ran.err
    assert "runs on" not in ran.err
    assert content(out) == content(expected)


@pytest.mark.deep
def test_two_processes_do_not_share_a_folder(
    undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    source, expected = undisturbed
    out = tmp_path / "out"
    same_time(expected, out)
    child = start(source, out, "-q", most=1)  # it does not end meanwhile
    assert wait_for(child, out, 1), child.communicate()
    ran = batch(source, out)
    assert ran.code == 2
    assert ran.err == (
        f"error: another process is at work in {out}\nhint: wait for it, or choose another -o\n"
    )
    assert batch(source, out, "--force").code == 2
    child.kill()
    child.communicate()
    assert batch(source, out, "-q").code == 1
    assert content(out) == content(expected)
