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

pytestmark = pytest.mark.deep


@pytest.fixture
def job(undisturbed: tuple[Path, Path], tmp_path: Path) -> tuple[Path, list[bytes], Path]:
    """An input, its answers, and a job on it that has done nothing."""
    source, expected = undisturbed
    same_time(expected, tmp_path / "out")
    return source, content(expected), tmp_path / "out"


def test_killed_at_random_moments(job: tuple[Path, list[bytes], Path]) -> None:
    source, expected, out = job
    chance = random.Random(3)
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
    assert content(out) == expected
    assert not (out / "journal").exists()
    assert batch(source, out).code == 1
    assert content(out) == expected


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_signals_keep_what_is_done(
    number: signal.Signals, code: int, said: str, job: tuple[Path, list[bytes], Path]
) -> None:
    source, expected, out = job
    child = start(source, out, most=90)
    assert wait_for(child, out, 5000), child.communicate()
    child.send_signal(number)
    _, err = child.communicate(timeout=120)
    assert child.returncode == code, err
    assert f"of 300 lines are done and kept in {out}; the same command resumes" in err
    assert err.rstrip().endswith(f"error: {said}")
    assert "Traceback" not in err
    assert kept(out) >= 5000
    ran = batch(source, out)
    assert " of 300 lines are done already" in ran.err
    assert content(out) == expected


def test_a_full_disk_loses_nothing(job: tuple[Path, list[bytes], Path]) -> None:
    source, expected, out = job
    for limit in (10_000, 50_000):  # of any file
        limits = (limit, limit)
        child = start(source, out, limit=lambda: setrlimit(RLIMIT_FSIZE, limits))  # noqa: B023
        _, err = child.communicate()
        assert child.returncode == 1, err
        assert err.endswith("hint: free some space: the same command resumes then\n")
        assert f"error: {out / 'journal'} cannot be written: " in err
        assert kept(out) == limit
    assert batch(source, out, "-q").code == 1
    assert content(out) == expected
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock", "errors.jsonl", "job.json", "output.jsonl",
    ]  # fmt: skip


def test_a_kill_between_the_last_line_and_the_output(
    job: tuple[Path, list[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, expected, out = job

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
    assert content(out) == expected


def test_two_processes_do_not_share_a_folder(job: tuple[Path, list[bytes], Path]) -> None:
    source, expected, out = job
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
    assert content(out) == expected
