"""What shells offer for flags of bench."""

from __future__ import annotations

import pytest

from tests.support.command import imports
from tests.support.completion import offered


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("trtla bench --compare hf-", ["hf-prompt-lookup", "hf-assisted"]),
        ("trtla bench --compare hf,hf-a", ["hf,hf-assisted"]),
        ("trtla bench --prompts code,s", ["code,summarization"]),
        ("trtla bench --dtype bf", ["bfloat16"]),
        ("trtla bench --arms ng", []),
        ("trtla bench --arms na", ["nasd"]),
        ("trtla bench --grid-ngram-kind o", ["onelevel"]),
        ("trtla bench --categories dia", ["dialogue"]),
    ],
)
def test_values_are_offered_by_what_a_flag_knows(line: str, values: list[str]) -> None:
    assert offered(line) == [f"plain,{value}" for value in values]


@pytest.mark.parametrize(
    ("line", "offer"),
    [
        ("trtla bench --draft-model mod", "dir,mod"),
        ("trtla bench --prompts ./own", "file,./own"),
        ("trtla report ben", "file,ben"),
    ],
)
def test_the_shell_itself_completes_folders_and_files(line: str, offer: str) -> None:
    assert offered(line) == [offer]


def test_every_value_behind_a_flag_of_several_is_offered() -> None:
    first = offered("trtla bench --lookahead ")
    assert offered("trtla bench --lookahead 7,7,7 3,4,2 ") == first
    assert "plain,auto" in first
    assert offered("trtla bench --lookahead 7,7,7 --roun") == ["plain,--rounds"]
    assert offered("trtla bench --lookahead 7,7,7 --rounds 3 ") == ["file,"]  # the model


def test_completing_imports_nothing_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"COMP_CWORD": "3", "COMP_WORDS": "trtla bench --compare h"}
    for key, value in {"_TRTLA_COMPLETE": "bash_complete", **line}.items():
        monkeypatch.setenv(key, value)
    assert "plain,hf" in imports([], heavy=("torch", "transformers", "numpy", "rich")).out
