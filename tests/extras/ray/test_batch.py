"""Jobs over replicas: the same bytes as in one process, whoever is killed on the way."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.extras.batch.support import (
    batch,
    content,
    kept,
    mixed,
    same_time,
    start,
    wait_for,
    write,
)
from tests.extras.ray.support import alive, descendants, wait_until

pytestmark = pytest.mark.deep

pytest.importorskip("ray.data", reason="needs Ray: pip install 'trtla[ray]'")

RAY = ("--ray", "--replicas", 2, "-q")


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> tuple[Path, Path]:
    """Lines, and what one process makes of them."""
    folder = tmp_path_factory.mktemp("alone")
    source = write(folder / "in.jsonl", mixed(1000))
    batch(source, folder / "out")
    return source, folder / "out"


def actors(process: int) -> set[int]:
    """The actors of a job, which is this process."""
    found = set()
    for one in descendants(process):
        try:
            name = Path(f"/proc/{one}/cmdline").read_text()
        except OSError:
            continue
        if "MapWorker" in name:
            found.add(one)
    return found


def test_the_same_bytes(alone, tmp_path):
    source, expected = alone
    out = tmp_path / "out"
    same_time(expected, out)
    child = start(source, out, *RAY)
    child.communicate(timeout=200)
    assert child.returncode == 1  # some lines are wrong
    assert content(out) == content(expected)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_that_is_ended_goes_on(alone, tmp_path, number):
    source, expected = alone
    out = tmp_path / "out"
    same_time(expected, out)
    child = start(source, out, *RAY)
    assert wait_for(child, out, 5000)
    below = descendants(child.pid)
    child.send_signal(number)
    _, err = child.communicate(timeout=120)
    assert child.returncode == (143 if number == signal.SIGTERM else -9), err
    assert kept(out) >= 5000
    wait_until(lambda: not alive(below), 150)
    child = start(source, out, *RAY)
    _, err = child.communicate(timeout=200)
    assert content(out) == content(expected), err


def test_an_actor_that_is_killed_loses_no_line(alone, tmp_path):
    source, expected = alone
    out = tmp_path / "out"
    same_time(expected, out)
    child = start(source, out, *RAY)
    assert wait_for(child, out, 5000)
    killed = actors(child.pid)
    assert killed
    for process in killed:
        os.kill(process, signal.SIGKILL)
    _, err = child.communicate(timeout=200)
    assert content(out) == content(expected), err
