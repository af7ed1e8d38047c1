"""Candidate trees propose what they proposed when the traces were recorded.

A trace is a random session of two requests: every call of the trees with its result, a line each.
After a change that is meant to alter drafts, record them with
`TRTLA_UPDATE_TRACES=1 scripts/test.sh tests/runtime/test_tree_traces.py` and read the difference;
`test_tree_floors.py` says whether drafts of real texts became better or worse.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.tree_sessions import Calls, Session, Theme

FOLDER = Path(__file__).parent / "tree_traces"
STEPS = 16
SAMPLED = (0.7, 1.3)
THEMES = {
    "context": Theme(("context",), (0.0,)),
    "expected-and-window": Theme(("expected", "window"), (0.0,)),
    "requests": Theme(("requests",), (0.0,), most_tokens=60, shared=0.8),
    "recycling": Theme(("recycling",), (0.0,)),
    "agreement": Theme(("context", "recycling"), (0.0,)),
    "noise": Theme(("context", "recycling"), SAMPLED),
    "chains": Theme(("chain", "recycling"), (0.0, 0.7)),
    "grammar": Theme(("grammar", "context", "recycling"), (0.0,), vocab=29),
    "prices": Theme(priced=True),
    "all": Theme(most_tokens=40, shared=0.5),
    "heads": Theme(("head", "context", "recycling", "grammar"), (0.0, 0.7)),
}


def record(name: str) -> None:
    theme = THEMES[name]
    session = Session(list(THEMES).index(name), theme)
    for _ in range(STEPS):
        session.step()
    session.finish()
    lines = [{"vocab": theme.vocab, "most_tokens": theme.most_tokens}, *session.calls.log]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    FOLDER.joinpath(f"{name}.jsonl").write_text(text)


def alike(found: Any, recorded: Any) -> bool:
    """Equal, but for the last digit of rounded probabilities."""
    if isinstance(recorded, float):
        return bool(found == pytest.approx(recorded, abs=2e-5, rel=2e-5))
    if isinstance(recorded, list):
        return len(found) == len(recorded) and all(map(alike, found, recorded))
    if isinstance(recorded, dict):
        return found.keys() == recorded.keys() and all(
            alike(found[key], value) for key, value in recorded.items()
        )
    return bool(found == recorded)


@pytest.mark.parametrize("name", THEMES)
def test_a_recorded_session_is_repeated(name: str) -> None:
    if os.environ.get("TRTLA_UPDATE_TRACES"):
        record(name)
    lines = map(json.loads, FOLDER.joinpath(f"{name}.jsonl").read_text().splitlines())
    calls = Calls(**next(lines))
    for number, (call, arguments, recorded) in enumerate(lines, 2):
        found = json.loads(json.dumps(calls(call, *arguments)))
        assert alike(found, recorded), f"{name}.jsonl, line {number}: {call} {arguments}"


def test_the_folder_has_these_traces_alone() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == THEMES.keys()
