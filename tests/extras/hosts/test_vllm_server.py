"""vLLM's own server with trtla's proposer; `scripts/test_plugins.sh` makes its environment.

TRTLA_VLLM_PYTHON names the Python that has vLLM, TRTLA_VLLM_MODEL another folder than the shipped
tiny model.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from trtla.data.prompt_sets import load_sets

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("TRTLA_VLLM_PYTHON")
MODEL = os.environ.get("TRTLA_VLLM_MODEL", str(ROOT / "trtla" / "assets" / "tiny-llama"))
OURS = {
    "method": "custom_class",
    "model": "trtla.extras.hosts.vllm.TreeProposer",
    "num_speculative_tokens": 5,
}
NEW, ROOM = 48, 512

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="needs vLLM: scripts/test_plugins.sh"),
    pytest.mark.timeout(1200),
]


@dataclass
class Server:
    url: str
    log: Path

    def complete(self, prompt: str | list[int], **options: Any) -> str:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": NEW, "temperature": 0, **options}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def count(self, name: str) -> float:
        page = httpx.get(f"{self.url}/metrics").text
        found = re.search(rf"^vllm:spec_decode_num_{name}_total{{.*}} (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else 0.0


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    surroundings = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [
        *(str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", str(ROOM), "--max-num-seqs", "8", *options),
    ]
    log = folder / "log.txt"
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", **surroundings},
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    server = Server(f"http://127.0.0.1:{port}", log)
    try:
        _wait(server, process)
        yield server
    finally:
        process.terminate()
        process.wait(60)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            if httpx.get(f"{server.url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(server.log.read_text()[-4000:])


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    sets = load_sets(["code", "chat"], (), 6)
    return [question.turns[0] for one in sets for question in one.questions]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, prompts: list[str]) -> list[str]:
    """What vLLM says without drafts."""
    with serving(tmp_path_factory.mktemp("plain")) as server:
        return [server.complete(prompt) for prompt in prompts]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("ours")
    with serving(folder, "--speculative-config", json.dumps(OURS)) as server:
        yield server


@pytest.mark.parametrize("clients", [1, 5])
def test_greedy_texts_are_vllms_own(
    plain: list[str], ours: Server, prompts: list[str], clients: int
) -> None:
    before, drafts = ours.count("accepted_tokens"), ours.count("drafts")
    with ThreadPoolExecutor(clients) as threads:
        assert list(threads.map(ours.complete, prompts)) == plain
    accepted = ours.count("accepted_tokens") - before
    assert accepted > 0.5 * (ours.count("drafts") - drafts)


def test_requests_that_sample_are_drafted_for_too(ours: Server, prompts: list[str]) -> None:
    before = ours.count("draft_tokens")
    texts = {ours.complete(prompts[0], temperature=0.8, seed=seed) for seed in range(3)}
    assert len(texts) == 3
    assert ours.count("draft_tokens") > before


def test_clients_that_go_and_texts_without_room_are_no_fault(
    ours: Server, prompts: list[str]
) -> None:
    body = {"model": MODEL, "prompt": prompts[0], "max_tokens": 300, "stream": True}
    with httpx.stream("POST", f"{ours.url}/v1/completions", json=body, timeout=300) as answer:
        assert next(answer.iter_lines())  # then the client goes, and its row with it
    until_full = ours.complete([5, 6, 7, 8] * 3, max_tokens=ROOM - 12, ignore_eos=True)
    assert len(until_full) > ROOM
    assert ours.complete(prompts[0])
    assert "trtla drafts no more" not in ours.log.read_text()
