"""scripts/compare_peers.py and compare_proposers.py, with servers of trtla as the peers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import needs

pytestmark = needs("bench")  # whose documents the script reads

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "trtla" / "assets" / "tiny-llama"
SMALL = ["--clients", "1,2", "--turns", "1", "--num-prompts", "2", "--tokens", "4"]


def compared(peer: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/compare_peers.py", str(MODEL), "--peer", peer, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.deep
def test_two_servers_are_measured_in_turns() -> None:
    plain = f"{sys.executable} -m trtla serve -m {{model}} --port {{port}} --lookahead 1,1,0"
    done = compared(plain, "--name", "plain", *SMALL)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row] for row in rows[2:]]
    names = ["trtla", "plain", "trtla over plain"]
    assert [row[:2] for row in cells] == [[clients, name] for clients in "12" for name in names]
    for ours, peer, ratio in (cells[:3], cells[3:]):
        assert float(ratio[2]) == pytest.approx(float(ours[2]) / float(peer[2]), rel=0.02)
        assert [ours[5], peer[5]] == ["0", "0"]  # failed requests


def test_a_server_that_ends_is_named_with_what_it_said() -> None:
    done = compared("true", "--ours", f"{sys.executable} -c \"print('no such model')\"")
    assert done.returncode == 1
    assert done.stderr == "trtla does not answer: no such model\n\n"


@pytest.mark.deep
def test_each_prompt_goes_to_all_servers_and_their_texts_are_compared(tmp_path: Path) -> None:
    serve = f"{sys.executable} -m trtla serve -m {{model}} --port {{port}} --dtype float32"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        '{"category": "a", "text": "def f(x):"}\n{"category": "b", "text": "x = "}\n'
    )
    command = [sys.executable, "scripts/compare_proposers.py", str(MODEL), "--tokens", "6"]
    command += ["--server", "plain", f"{serve} --lookahead 1,1,0", "--server", "auto", serve]
    done = subprocess.run(
        [*command, "--prompts", str(prompts)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row] for row in rows[1:]]
    expected = [[category, name] for category in ("a", "b", "all") for name in ("plain", "auto")]
    assert [row[:2] for row in cells] == expected
    assert {row[2] for row in cells} == {"1.00"}  # these servers do not count as vLLM's do
    assert [row[5] for row in cells[::2]] == ["1.00"] * 3
    assert [row[6] for row in cells] == ["1 of 1"] * 4 + ["2 of 2"] * 2
