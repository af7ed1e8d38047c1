"""Trained heads behind a server: which one a request may name, their counters, and a note."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.heads import fitting, write_head
from tests.support.served import open_shipped, refused, serving
from trtla.formats.model import Model
from trtla.settings.drafting import DraftOptions

LONG = {
    "prompt": "def f(x):",
    "max_tokens": 40,
    "temperature": 0,
    "ignore_eos": True,
    "cache": "private",
}


@pytest.fixture(scope="module")
def head(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("heads") / "random"
    return str(write_head(folder, **fitting(Model.at(tiny_llama).config)))


def counted(served, name: str) -> float:
    found = re.search(
        rf"^trtla_spec_decode_{name}_total (\S+)$", served.http.get("/metrics").text, re.M
    )
    return float(found[1]) if found else -1.0


def test_requests_name_the_head_that_is_loaded_and_its_work_is_counted(head, capfd):
    relative = os.path.relpath(head)
    with serving(
        lambda: open_shipped(heads=[relative], draft_options=DraftOptions(nodes=2)), quiet=False
    ) as served:
        plain = served.complete(**LONG).json()["choices"][0]["text"]
        assert counted(served, "num_head_forwards") == 0
        with_head = [served.complete(**LONG, drafter=f"head:{head}", metrics=True) for _ in "ab"]
        for answer in with_head:
            (choice,) = answer.json()["choices"]
            assert choice["text"] == plain
            assert answer.json()["metrics"]["sources"]["head"]["fed"] > 0
        forwards, seconds = counted(served, "num_head_forwards"), counted(served, "head_seconds")
        assert forwards >= 40
        assert 0.0 < seconds < 60.0
        message = refused(served.complete(**LONG, drafter="head:/etc"), 400, "drafter")
        assert "asks for the head /etc, which is not loaded" in message
    notes = re.findall(r"the head .* is right \d % of the time: it may be", capfd.readouterr().err)
    assert len(notes) == 1
    assert relative in notes[0]


def test_a_server_without_heads_has_no_counters_of_them(served):
    assert counted(served, "num_head_forwards") == -1.0
