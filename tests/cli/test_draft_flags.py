"""--draft-...: the same flags on run, bench and summarize, from flag and preset; same texts."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.cli.conftest import refused, trtla
from trtla.cli.app import cli

ALL = (
    "--draft-context", "3", "--draft-merge", "--draft-accept-window", "--draft-keep-pool", "100",
    "--draft-cells", "drawn",
)  # fmt: skip


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_texts_are_those_without_the_flags(engine: Path, temperature: str) -> None:
    texts = ("--input-text", "abcabcabc", "aaaa", "--temperature", temperature, "--json")
    plain = trtla("run", "--engine-dir", engine, *texts).json
    drafted = trtla("run", "--engine-dir", engine, *ALL, *texts)
    assert drafted.code == 0, drafted.err
    ids = [result["output_ids"] for result in drafted.json["results"]]
    assert ids == [result["output_ids"] for result in plain["results"]]
    assert drafted.json["stats"]["drafted"] > plain["stats"]["drafted"]  # the window counts now


def test_a_preset_has_the_names_with_underscores(engine: Path, tmp_path: Path) -> None:
    preset = tmp_path / "drafts.yaml"
    preset.write_text("draft_context: 2\ndraft_accept_window: true\ndraft_cells: drawn\n")
    given = ("--engine-dir", engine, "--input-text", "abab", "--json")
    by_preset = trtla("run", "--config", preset, *given)
    by_flags = trtla(
        "run", "--draft-context", "2", "--draft-accept-window", "--draft-cells", "drawn", *given
    )
    assert by_preset.code == 0, by_preset.err
    assert by_preset.json["results"] == by_flags.json["results"]


def test_values_out_of_range_are_refused(engine: Path) -> None:
    for flag, value in (("context", "0"), ("keep-pool", "-1"), ("cells", "both")):
        ran = trtla("run", "--engine-dir", engine, "--input-text", "a", f"--draft-{flag}", value)
        refused(ran, 2, f"--draft-{flag}")


def test_commands_that_decode_share_the_flags() -> None:
    for name in ("run", "bench", "summarize"):
        command = cli.commands[name]
        found = [p for p in command.params if getattr(p, "section", "").startswith("Drafts of")]
        assert [p.opts[0] for p in found] == [flag for flag in ALL if flag.startswith("--")]
        assert all(isinstance(p, click.Option) and p.help for p in found)
