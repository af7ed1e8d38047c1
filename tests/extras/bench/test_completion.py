"""What shells offer for flags of bench and tune."""

from __future__ import annotations

import pytest

from tests.support.completion import offered


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("trtla tune --gpu h2", ["h200"]),
    ],
)
def test_values_are_offered_by_what_a_flag_knows(line: str, values: list[str]) -> None:
    assert offered(line) == [f"plain,{value}" for value in values]


@pytest.mark.parametrize(
    ("line", "offer"),
    [
        ("trtla report ben", "file,ben"),
    ],
)
def test_the_shell_itself_completes_folders_and_files(line: str, offer: str) -> None:
    assert offered(line) == [offer]
