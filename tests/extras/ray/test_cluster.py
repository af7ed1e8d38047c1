"""Two machines, as Ray's own cluster for tests makes them of one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.extras.ray.support import alive, serving, wait_until
from tests.support.command import ROOT

pytestmark = pytest.mark.deep

pytest.importorskip("ray.serve", reason="needs Ray: pip install 'trtla[ray]'")

LONG = {"prompt": "def f(", "max_tokens": 400, "ignore_eos": True, "temperature": 0.7, "seed": 1}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.machine = made.add_node(num_cpus=1)
    yield made
    made.shutdown()


def test_a_machine_that_is_lost_loses_no_text(cluster, tmp_path):
    flags = ("--config", ROOT / "configs/serve/replicas.yaml", "--threads", 1)
    flags += ("--ray-address", cluster.address)
    with serving(tmp_path / "log", *flags) as server:
        whole = [server.text(**{**LONG, "seed": seed}) for seed in range(4)]
        assert server.metric("replicas") == 2
        texts = [stream(server, seed) for seed in range(4)]
        found = [""] * 4
        for seed, text in enumerate(texts):
            found[seed] += next(text)
        cluster.remove_node(cluster.machine)
        for seed, text in enumerate(texts):
            found[seed] += "".join(text)
        assert found == whole
        ours = set(server.replicas())
        assert server.end() == 0
        wait_until(lambda: not alive(ours))
    assert len(cluster.list_all_nodes()) == 1


def test_the_file_for_several_machines_is_one_that_ray_takes():
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    path = ROOT / "configs/serve/ray-cluster.yaml"
    validate_config(prepare_config(yaml.safe_load(path.read_text())))


def stream(server, seed: int) -> Iterator[str]:
    body = {**LONG, "seed": seed, "stream": True, "lookahead": [1, 1, 0]}
    with server.http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])["choices"][0]["text"]


def test_more_replicas_than_the_cluster_has_room_for(cluster, tmp_path):
    from tests.extras.ray.support import start

    log = tmp_path / "log"
    flags = ("--replicas", 5, "--threads", 1, "--ray-address", cluster.address)
    assert start(log, "--ray", *flags).wait(120) == 2
    assert "5 replicas of 1 core need 5 cores, and the cluster has 2" in log.read_text()


def test_replicas_do_not_outlive_a_killed_server(cluster, tmp_path):
    flags = ("--replicas", 1, "--threads", 1, "--ray-address", cluster.address)
    with serving(tmp_path / "log", *flags) as server:
        ours = set(server.replicas())
        assert ours
        assert server.metric("replicas") == 1  # it has heard of its server
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(120)
        wait_until(lambda: not alive(ours), 150)
