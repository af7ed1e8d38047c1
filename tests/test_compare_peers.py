"""scripts/compare_peers.py, with a second server of trtla's as the peer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
