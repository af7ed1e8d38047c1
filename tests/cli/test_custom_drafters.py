"""--drafter module:Name: imported from the current folder at the start, and from no other place."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.command import known, needs, process, refused, trtla

CODE = """
class LastTime:
    def propose(self, ids):
        before = [place for place, token in enumerate(ids[:-1]) if token == ids[-1]]
        return ids[before[-1] + 1 :] if before else []
"""
PROMPT = "import os\nimport sys\nimport os\nimport sys\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules that draft and modules that must not be imported."""
    (tmp_path / "ideas_of_mine.py").write_text(CODE)
    (tmp_path / "broken_ideas.py").write_text("x = nothing")
    (tmp_path / "mischief.py").write_text("open('imported', 'w')" + CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@needs("bench")
def test_bench_measures_ideas_beside_each_other(folder: Path, tiny_llama: Path) -> None:
    drafters = ("ideas_of_mine:LastTime", "ideas_of_mine.py:LastTime,lookahead", "prompt-lookup")
    small = ("--prompts", "code", "--num-prompts", "2", "--rounds", "1", "--max-output-len", "24")
    ran = process("bench", tiny_llama, "--drafter", *drafters, *small, "--json")
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert [row["arm"] for row in rows] == ["ar", *drafters] * 2
    assert {row["equal_texts"] for row in rows} == {2}
    assert all(row["accepted"] > 0 for row in rows if row["arm"] == drafters[0])


def test_run_compares_with_plain_decoding(folder: Path, tiny_llama: Path) -> None:
    asked = ("run", "-m", tiny_llama, "-p", PROMPT, "-n", "32", "--check-lossless", "--json")
    for heat in ("0", "0.8"):
        ran = trtla(*asked, "--temperature", heat, "--drafter", "ideas_of_mine.py:LastTime")
        assert ran.code == 0, ran.err
        assert ran.json["results"][0]["lossless"]


@pytest.mark.parametrize(
    ("drafter", "words", "hint"),
    [
        ("broken_ideas:Mine", "cannot be imported: NameError: name 'nothing'", "file.py:Name"),
        ("broken_ideas.py:Mine", "cannot be imported: NameError: name 'nothing'", "file.py:Name"),
        ("ideas_of_mine:LastTme", "ideas_of_mine has no LastTme", "did you mean LastTime?"),
        ("no_such_ideas:Mine", "No module named 'no_such_ideas'", "in this folder or installed"),
        ("no_such_ideas.py:Mine", "FileNotFoundError", "file.py:Name"),
    ],
)
def test_imports_that_fail_are_one_sentence(
    folder: Path, no_weights: Path, drafter: str, words: str, hint: str
) -> None:
    for command in known(("run", "-p", "a"), ("bench",)):
        ran = trtla(*command, "--engine-dir", no_weights, "--drafter", drafter)
        refused(ran, 2, f"the drafter {drafter}", words, hint)


@pytest.mark.parametrize("change", ["sys.path.pop(0)", "sys.path = sys.path[1:]"])
def test_a_module_may_change_the_path(folder: Path, tiny_llama: Path, change: str) -> None:
    (folder / "changes_path.py").write_text(f"import sys\n{change}\n{CODE}")
    asked = ("run", "-m", tiny_llama, "-p", PROMPT, "-n", "4", "--drafter")
    ran = trtla(*asked, "changes_path.py:LastTime")
    assert ran.code == 0, ran.err


def test_no_prompt_file_and_no_conversation_imports_code(folder: Path, tiny_llama: Path) -> None:
    file = folder / "prompts.jsonl"
    for drafter in ("mischief:LastTime", ["lookahead", "mischief.py:LastTime"]):
        file.write_text(json.dumps({"text": "a", "drafter": drafter, "max_output_len": 4}))
        ran = trtla("run", "-m", tiny_llama, "--input-file", file)
        refused(ran, 2, "line 1 of", "which the model was not opened with", "--drafter mischief")
    for line in known(("chat", tiny_llama)):
        ran = trtla(*line, stdin="/drafter mischief:LastTime\n")
        assert ran.code == 2
        assert "was not opened with" in ran.err
    assert not (folder / "imported").exists()
    file.write_text(json.dumps({"text": "a", "drafter": "mischief:LastTime", "max_output_len": 4}))
    both = ("--drafter", "lookahead,mischief:LastTime")
    assert trtla("run", "-m", tiny_llama, "--input-file", file, *both).code == 0
