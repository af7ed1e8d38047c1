"""--lookahead-...: the same flags on all commands that decode, their former names, same texts."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.support.command import refused, trtla
from trtla.cli.app import cli

NEW, FORMER = ("--lookahead-cells", "drawn"), ("--draft-cells", "drawn")
SAMPLED = (
    "--lookahead", "4,3,4", "--input-text", "abcabcabc", "abcabcabc", "--temperature", "0.8",
    "--json",
)  # fmt: skip
"""Texts that the option drafts otherwise for."""


def decode(engine: Path, *flags: object, **more: object) -> dict:
    ran = trtla("run", "--engine-dir", engine, "--max-batch-size", "1", *flags, *SAMPLED, **more)
    assert ran.code == 0, ran.err
    return ran.json


def told(document: dict) -> tuple[list, dict]:
    """Texts, and the counters that say how they were drafted."""
    stats = {name: document["stats"][name] for name in ("drafted", "accepted", "steps")}
    return [result["output_ids"] for result in document["results"]], stats


def test_texts_are_those_without_the_flags(engine: Path) -> None:
    plain, drafted = told(decode(engine)), told(decode(engine, *NEW))
    assert drafted[0] == plain[0]
    assert drafted[1] != plain[1]


def test_former_names_are_taken_from_flags_environment_and_presets(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = told(decode(engine, *NEW))
    assert told(decode(engine, *FORMER)) == expected
    former, new = tmp_path / "former.yaml", tmp_path / "new.yaml"
    former.write_text("draft_cells: drawn\ndraft_merge: true\n")
    new.write_text("lookahead_cells: drawn\n")
    for preset in (former, new):
        assert told(decode(engine, "--config", preset)) == expected
    monkeypatch.setenv("TRTLA_RUN_DRAFT_CELLS", "greedy")
    assert told(decode(engine, "--lookahead-cells", "drawn")) == expected  # a flag wins


def test_what_is_the_default_now_changes_nothing(engine: Path) -> None:
    expected = told(decode(engine))
    assert told(decode(engine, "--draft-merge", "--draft-accept-window")) == expected


def test_keeping_a_pool_is_no_longer_an_option(no_weights: Path, tmp_path: Path) -> None:
    """Neither under its last name nor under the one before."""
    preset = tmp_path / "preset.yaml"
    for name in ("lookahead_keep_pool", "draft_keep_pool"):
        preset.write_text(f"{name}: 100\n")
        given = ("run", "--engine-dir", no_weights, "--input-text", "a")
        refused(trtla(*given, "--config", preset), 2, f'the unknown key "{name}"')
        flag = "--" + name.replace("_", "-")
        refused(trtla(*given, flag, "100"), 2, f"no such option '{flag}'")


def test_commands_that_decode_share_the_flags() -> None:
    for name in ("run", "chat", "explain", "bench", "summarize"):
        command = cli.commands[name]
        found = [p for p in command.params if getattr(p, "section", "") == "Lookahead drafting"]
        assert [p.opts[0] for p in found] == [NEW[0], "--lookahead-sources", "--lookahead-nodes"]
        assert all(isinstance(p, click.Option) and p.help for p in found)
