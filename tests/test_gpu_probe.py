"""The probe behind scripts/gpu_check.sh: what it makes, runs and measures, by its modules."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.command import needs
from trtla.runtime.models.cuda_check import CudaPath

pytestmark = needs("bench", "doctor")  # whose documents the script reads

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.setenv("PROBE_MODELS", "/nowhere")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module


@pytest.fixture
def models(probe: Callable[[str], Any]) -> Any:
    return probe("gpu_probe.models")


def test_what_a_program_prints_is_printed_before_its_end(models, capsys, tmp_path):
    code = f"print(1, flush=True); open({str(tmp_path / 'gate')!r}).read(); print(2)"
    os.mkfifo(tmp_path / "gate")
    running = threading.Thread(target=models._streamed, args=([sys.executable, "-c", code],))
    running.start()
    with (tmp_path / "gate").open("w"):  # opens once the program waits there
        out, ends = "", time.monotonic() + 60
        while not out and time.monotonic() < ends:
            time.sleep(0.01)
            out = capsys.readouterr().out
        assert out == "1\n"
    running.join()
    assert capsys.readouterr().out == "2\n"


def test_a_test_that_fails_is_named_without_those_that_pass(models, capfd):
    lines = [f"[gw1] [ 9%] {end} tests/test_a.py::{end}" for end in ("PASSED", "FAILED")]
    printed = models._streamed(["printf", "%s\n", *lines], models._NO_FAILURE)
    assert printed.splitlines() == lines
    assert capfd.readouterr().out == lines[1] + "\n"


@pytest.mark.deep
def test_a_model_whose_making_was_interrupted_is_made_anew(models, tmp_path):
    folder, part = tmp_path / "2x", tmp_path / "2x.part"
    part.mkdir()
    (part / "model.safetensors").write_text("half")
    (tmp_path / "2x.log").write_text("killed")
    models._make(folder, {"hidden_size": 512})
    with (tmp_path / "2x.log").open("a") as log:
        assert not models._locked(log)
        fcntl.flock(log, fcntl.LOCK_EX)  # until it is made
    assert not part.exists(), (tmp_path / "2x.log").read_text()
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == 512
    assert "killed" not in (tmp_path / "2x.log").read_text()


def test_a_model_that_is_being_made_is_not_made_twice(models, tmp_path):
    with (tmp_path / "1B.log").open("a") as log:
        assert models._locked(log)
        models._make(tmp_path / "1B", {"no_such_size": 1})
    assert (tmp_path / "1B.log").read_text() == ""


def test_the_host_s_part_of_a_step_is_never_negative(probe):
    cost = probe("gpu_probe.step").Cost
    assert (cost(5.0, 3.0).host, cost(3.0, 5.0).host) == (2.0, None)


def test_graphs_that_are_not_captured_are_an_error(probe, monkeypatch):
    feeds = probe("gpu_probe.feeds")
    assert feeds.FED == {"AR": 1, "7,7,7": 84, "15,5,15": 120}
    monkeypatch.setattr(feeds, "DRY", True)
    monkeypatch.setattr(feeds, "DEVICE", torch.device("cpu"))
    model = feeds.random_model("tiny", torch.float32)
    feeds.set_path(model, fused=False)

    def fail(*_: object) -> None:
        raise RuntimeError("Triton is broken")

    monkeypatch.setattr(model, "forward_batch", fail)
    with pytest.raises(RuntimeError, match="not all graphs can be captured"):
        feeds.stepper(model, 40)


def test_only_the_graph_path_is_named_by_doctor(probe):
    names_graphs = probe("gpu_probe.commands").names_graphs
    assert names_graphs(str(CudaPath(None)))
    assert not names_graphs(str(CudaPath("logits by graphs differ by 0.5")))
    assert not names_graphs(None)
