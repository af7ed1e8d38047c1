"""--threads: how many threads compute on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.command import refused, trtla


@pytest.mark.parametrize("command", ["run", "explain"])
def test_the_number_of_threads_is_set(engine: Path, command: str) -> None:
    before = torch.get_num_threads()
    wanted = 1 if before > 1 else 2
    try:
        ran = trtla(command, "--engine-dir", engine, "--input-text", "a", "--threads", str(wanted))
        assert ran.code == 0, ran.err
        assert torch.get_num_threads() == wanted
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", ["0", "100000"])
def test_a_number_of_threads_that_cannot_be_is_refused(engine: Path, threads: str) -> None:
    ran = trtla("run", "--engine-dir", engine, "--input-text", "a", "--threads", threads)
    refused(ran, 2, "threads", threads)
