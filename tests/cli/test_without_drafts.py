"""Engines without room for drafts: how they are built, and that every command says so once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import known, needs, refused, trtla

NOTE = "was built without room for drafts, so lookahead drafts nothing"


@pytest.fixture(scope="module")
def plain(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain engine."""
    folder = tmp_path_factory.mktemp("plain") / "engine"
    ran = trtla("build", checkpoint, "-o", folder, "--no-lookahead", "--max-seq-len", "128")
    assert ran.code == 0, ran.err
    assert "plain engine, max_draft_len 0" in ran.out
    assert json.loads((folder / "trtla.json").read_text())["settings"]["lookahead"] == "flag"
    return folder


def test_torch_engines_have_room_for_drafts_unless_told_otherwise(
    checkpoint: Path, tmp_path: Path
) -> None:
    ran = trtla("build", checkpoint, "-o", tmp_path / "engine")
    assert "lookahead window=7 ngram=7 verification=7, max_draft_len 83" in ran.out
    assert "note: lookahead 7,7,7 is the default of torch engines; --no-lookahead" in ran.err
    manifest = json.loads((tmp_path / "engine" / "trtla.json").read_text())
    assert (manifest["lookahead"], manifest["settings"]["lookahead"]) == ([7, 7, 7], "default")
    small = ("--max-batch-size", "4", "--max-num-tokens", "100", "--dry-run", "--json")
    plan = trtla("build", checkpoint, "-o", tmp_path / "small", *small).json
    assert plan["settings"]["lookahead"] == {"value": "4,4,4", "from": "default"}
    assert plan["settings"]["max_num_tokens"] == {"value": 100, "from": "flag"}
    assert "the largest default that fits max_num_tokens 100" in plan["notes"][0]
    done = trtla("run", tmp_path / "engine", "-p", "abcabcabc", "-n", "8", "--json")
    assert NOTE not in done.err


def test_flags_that_exclude_each_other(checkpoint: Path, tmp_path: Path) -> None:
    build = ("build", checkpoint, "-o", tmp_path / "e", "--dry-run", "--json")
    both = ("--no-lookahead", "--lookahead", "3,3,3")
    refused(trtla(*build[:-1], *both), 2, "--no-lookahead and --lookahead 3,3,3 exclude each other")
    pasted = trtla(*build[:-1], "--no-lookahead", "--max-draft-len", "83")
    refused(pasted, 2, "max_draft_len 83 disagrees with lookahead 1,1,0")
    preset = tmp_path / "preset.yaml"
    preset.write_text("lookahead: [3, 3, 3]\n")
    ran = trtla(*build, "--config", preset, "--no-lookahead")
    assert ran.json["settings"]["lookahead"] == {"value": "1,1,0", "from": "flag"}
    preset.write_text("no_lookahead: true\n")
    ran = trtla(*build, "--config", preset, "--lookahead", "3,3,3")
    assert ran.json["settings"]["lookahead"] == {"value": "3,3,3", "from": "flag"}
    adopt = ("build", "--from-existing", tmp_path, "--no-lookahead")
    refused(trtla(*adopt), 2, "--no-lookahead does not go with --from-existing")


def test_every_command_says_once_that_nothing_is_drafted(plain: Path, articles: Path) -> None:
    for line in known(
        ("run", plain, "-p", "abc", "def", "-n", "4"),
        ("explain", plain, "-p", "abc", "-n", "4"),
        ("chat", plain, "-n", "4", "--no-chat"),
        ("summarize", plain, "--dataset", articles, "-n", "4", "--max-ite", "1"),
    ):
        ran = trtla(*line, stdin="abc\n")
        assert ran.code == 0, ran
        assert ran.err.count(NOTE) == 1, ran.err


@pytest.mark.parametrize(
    "flags",
    [
        ["--no-lookahead"],
        ["--lookahead", "1,1,0"],
        ["--drafter", "ngram"],
        ["--request-lookahead", "1,1,0"],
        ["--num-beams", "2"],
    ],
)
def test_nothing_is_said_where_no_lookahead_is_asked_for(plain: Path, flags: list[str]) -> None:
    ran = trtla("run", plain, "-p", "abc", "-n", "4", *flags)
    assert ran.code == 0, ran
    assert NOTE not in ran.err


@needs("bench")
def test_bench_has_no_arm_of_lookahead_that_is_plain_decoding(plain: Path) -> None:
    small = ("--prompts", "code", "--num-prompts", "1", "--rounds", "1", "-n", "8", "--json")
    for more in ((), ("--lookahead", "auto"), ("--drafter", "lookahead", "ngram")):
        ran = trtla("bench", plain, *small, "--temperature", "0", *more)
        assert ran.err.count(NOTE) == 1, ran.err
        arms = [row["arm"] for row in ran.json["rows"]]
        assert arms == (["ar", "ngram"] if "ngram" in more else ["ar"])


@needs("bench")
def test_an_ablation_leaves_out_what_would_draft_nothing(plain: Path, tmp_path: Path) -> None:
    arms, prompts = tmp_path / "arms.yaml", tmp_path / "prompts.txt"
    prompts.write_text("abcabc\n")
    arms.write_text(
        "arms: [{drafter: lookahead}, {lookahead: auto}, {name: nasd, drafter: ngram}]\n"
    )
    ask = ("--arms", arms, "--prompts", prompts, "-n", "8", "--rounds", "1")
    ran = trtla("bench", plain, *ask, "--temperature", "0", "--json")
    assert ran.err.count(NOTE) == 1, ran.err
    assert [row["arm"] for row in ran.json["rows"]] == ["ar", "nasd"]
