"""Ranks built by several processes: who builds what, and how every failure ends."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.command import ROOT
from trtla.errors import TrtlaError
from trtla.trtllm.rank_builds import build_ranks


@dataclass(frozen=True)
class FakeBuild:
    """Writes a file for a rank instead of an engine; `faults` tell what a rank does instead."""

    folder: Path
    faults: tuple[tuple[int, str], ...] = ()

    def build(self, rank: int, gpu: int) -> None:
        fault = dict(self.faults).get(rank)
        if fault == "raise":
            raise AssertionError("Engine building failed, please check the error log.\nmore")
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "disk":
            raise OSError(errno.ENOSPC, "No space left on device")
        if fault == "missing":
            raise FileNotFoundError(errno.ENOENT, "No such file", "rank0.safetensors")
        if fault == "hang":
            (self.folder / f"pid{rank}").write_text(f"{os.getpid()}\n")
            time.sleep(3600)  # pytest's time limit is far below
        (self.folder / f"rank{rank}.engine").write_text(f"{gpu} {os.getpid()}")


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers from a process that has imported PyTorch once, in the place of fresh ones."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "trtla.trtllm.rank_builds"])
    source = SimpleNamespace(get_context=lambda method: context)
    monkeypatch.setattr("trtla.trtllm.rank_builds.multiprocessing", source)


def test_one_worker_builds_in_this_process(tmp_path: Path) -> None:
    build_ranks(FakeBuild(tmp_path), 3, 1)  # type: ignore[arg-type]
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {f"rank{rank}.engine": f"0 {os.getpid()}" for rank in range(3)}


@pytest.mark.parametrize(
    "start", [None, pytest.param("spawn", marks=pytest.mark.deep)], ids=["cheap", "spawn"]
)
def test_workers_take_every_nth_rank_on_a_gpu_of_their_own(
    start: str | None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if start is None:
        request.getfixturevalue("cheap")
    build_ranks(FakeBuild(tmp_path), 3, 2)  # type: ignore[arg-type]
    gpus, pids = zip(
        *((tmp_path / f"rank{r}.engine").read_text().split() for r in range(3)), strict=True
    )
    assert gpus == ("0", "1", "0")
    assert pids[0] == pids[2] != pids[1]
    assert str(os.getpid()) not in pids


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_rank_is_named(workers: int, tmp_path: Path) -> None:
    with pytest.raises(TrtlaError) as caught:
        build_ranks(FakeBuild(tmp_path, ((1, "raise"),)), 2, workers)  # type: ignore[arg-type]
    assert caught.value.message == (
        "TensorRT-LLM cannot build rank 1: AssertionError: Engine building failed, "
        "please check the error log."
    )
    assert "Traceback" in str(caught.value.__cause__)


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("fault", ["raise", "die"])
def test_a_failing_rank_ends_the_others(fault: str, tmp_path: Path) -> None:
    build = FakeBuild(tmp_path, ((0, "hang"), (1, fault)))
    with pytest.raises(TrtlaError, match="cannot build rank 1"):
        build_ranks(build, 2, 2)  # type: ignore[arg-type]


@pytest.mark.usefixtures("cheap")
def test_a_killed_worker_tells_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(TrtlaError, match=r"rank 1: its process ended with exit code -9"):
        build_ranks(FakeBuild(tmp_path, ((1, "die"),)), 2, 2)  # type: ignore[arg-type]


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_stays_the_operating_systems_error(workers: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        build_ranks(FakeBuild(tmp_path, ((0, "disk"),)), 2, workers)  # type: ignore[arg-type]
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(TrtlaError, match="rank 0: FileNotFoundError"):  # this is no full disk
        build_ranks(FakeBuild(tmp_path, ((0, "missing"),)), 2, workers)  # type: ignore[arg-type]


def test_workers_do_not_outlive_a_killed_command(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from {__name__} import FakeBuild, build_ranks
build_ranks(FakeBuild(Path({str(tmp_path)!r}), ((0, "hang"), (1, "hang"))), 2, 2)
"""
    command, pids = [sys.executable, "-c", code], (tmp_path / "pid0", tmp_path / "pid1")
    with subprocess.Popen(command, cwd=ROOT) as parent:
        while not all(path.exists() and path.read_text().endswith("\n") for path in pids):
            time.sleep(0.02)
        parent.kill()
    while any(Path("/proc", path.read_text().strip()).exists() for path in pids):
        time.sleep(0.02)  # pytest's time limit ends a test whose workers stay
