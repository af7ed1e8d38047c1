"""What cannot be spread: one sentence, a hint, and no process is left."""

from __future__ import annotations

import shutil
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.extras.ray.support import SHIPPED, start
from tests.support.command import trtla

HAS_RAY = find_spec("ray") is not None
ray = pytest.mark.skipif(not HAS_RAY, reason="needs Ray: pip install 'trtla[ray]'")


def last_lines(path: Path) -> list[str]:
    return path.read_text().splitlines()[-2:]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--replicas", 2), "--replicas is for --ray"),
        (("--autoscale", "1:2"), "--autoscale is for --ray"),
        (("--ray", "--replicas", 2, "--autoscale", "1:2"), "exclude each other"),
        (("--ray", "--autoscale", "2:1"), "--autoscale must be MIN:MAX, such as 1:4"),
        (("--ray", "--autoscale", "0:1"), "--autoscale must be MIN:MAX, such as 1:4"),
        (("--ray", "--replicas", 0), "replicas is 0"),
    ],
)
def test_settings_that_do_not_fit(flags, said):
    ran = trtla("serve", "-m", SHIPPED, *flags)
    assert ran.code == 2
    assert said in ran.err


@pytest.mark.parametrize("command", ["serve", "batch"])
def test_without_ray(command, tmp_path, monkeypatch):
    """The extra that is named brings all packages, those of a server too."""
    for name in ("ray", "fastapi"):
        monkeypatch.setitem(sys.modules, name, None)
    source = tmp_path / "in.jsonl"
    source.write_text("{}\n")
    more = ("serve",) if command == "serve" else ("batch", source, "-o", tmp_path / "out")
    ran = trtla(*more, "-m", SHIPPED, "--ray")
    assert ran.code == 1
    assert "error: --ray needs the package ray, which is not installed" in ran.err
    assert "hint: pip install 'trtla[ray]'" in ran.err


@ray
def test_a_port_in_use_starts_nothing(tmp_path):
    log = tmp_path / "log"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start(log, "--ray", "--port", taken.getsockname()[1])
        assert process.wait(120) == 2
    assert "cannot be listened on" in last_lines(log)[0]


@ray
def test_a_model_that_no_replica_can_open(tmp_path):
    model, log = tmp_path / "model", tmp_path / "log"
    shutil.copytree(SHIPPED, model)
    (weights,) = (one for one in model.iterdir() if one.suffix == ".safetensors")
    weights.write_bytes(weights.read_bytes()[:2000])
    process = start(log, "--ray", "--replicas", 1, model=model)
    assert process.wait(120) in (1, 2)
    error, hint = last_lines(log)
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    assert "Traceback" not in log.read_text()


@ray
def test_a_cluster_that_is_not_there(tmp_path):
    log = tmp_path / "log"
    process = start(log, "--ray", "--ray-address", "127.0.0.1:1")
    assert process.wait(120) == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in log.read_text()


def test_replicas_have_no_drafter_of_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr("trtla.extras.ray.cluster.check_ray", lambda: None)
    (tmp_path / "my_idea.py").write_text("class Mine:\n    def propose(self, ids):\n        ...\n")
    ran = trtla("serve", "-m", SHIPPED, "--ray", "--drafter", f"{tmp_path}/my_idea.py:Mine")
    assert ran.code == 2
    assert "my_idea.py:Mine is code of this process, which replicas do not have" in ran.err
    assert "hint: omit --ray, or use another --drafter" in ran.err
