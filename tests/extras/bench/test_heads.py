"""Trained heads as arms of bench: their figures, their names, and who loads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Ran, refused, trtla
from tests.support.heads import fitting, write_head
from trtla.extras.bench.ways import PLAIN, Way, short_heads
from trtla.formats.model import Model
from trtla.settings.drafting import DrafterSettings

FIGURES = ("head_forwards", "head_s", "head_share")


@pytest.fixture(scope="module")
def head(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads") / "random"
    return write_head(folder, **fitting(Model.at(tiny_llama).config))


def bench(model: Path, *args: str | Path) -> Ran:
    small = ("--prompts", "code", "--num-prompts", "1", "--rounds", "1", "-n", "12")
    return trtla("bench", "-m", model, "--temperature", "0", *small, *args)


def test_a_head_is_an_arm_with_figures_of_its_own(tiny_llama: Path, head: Path) -> None:
    nodes = ("--lookahead-nodes", "4")
    arms = ("--drafter", "prompt-lookup", "lookahead", f"head:{head}")
    ran = bench(tiny_llama, *arms, "--gamma", "6", *nodes, "--json")
    assert ran.code == 0, ran.err
    plain, auto, lookup, own = ran.json["rows"]
    names = ["ar", "lookahead auto", "prompt-lookup", "head:random"]
    assert [row["arm"] for row in ran.json["rows"]] == names
    assert {row["equal_texts"] for row in ran.json["rows"]} == {1}
    for row in (plain, auto, lookup):
        assert [row[name] for name in FIGURES] == [None] * 3, row["arm"]
        assert "head" not in (row["sources"] or {})
    assert own["head_forwards"] >= own["steps"] - 1
    assert 0.0 < own["head_share"] < 1.0
    assert own["head_share"] == pytest.approx(own["head_s"] / own["time_s"])
    assert sum(own["sources"]["head"]["fed"]) > 0


def test_only_the_wide_table_has_heads(tiny_llama: Path, head: Path) -> None:
    usual = bench(tiny_llama, "--drafter", f"head:{head}")
    wide = bench(tiny_llama, "--drafter", f"head:{head}", "--wide")
    assert "| head:random" in usual.out
    for column in ("head/step", "of time in head", "sources of head:random"):
        assert (column in usual.out, column in wide.out) == (False, True)


def test_arms_of_a_file_have_heads(tiny_llama: Path, head: Path, tmp_path: Path) -> None:
    file, table = tmp_path / "arms.yaml", tmp_path / "table.csv"
    file.write_text(f'arms: [{{drafter: "head:{head}"}}, {{drafter: prompt-lookup, gamma: 9}}]')
    first = bench(tiny_llama, "--arms", file, "--json", "-o", table)
    assert [row["arm"] for row in first.json["rows"]] == ["ar", "head:random", "prompt-lookup"]
    assert first.json["rows"][1]["head_forwards"] > 0
    again = bench(tiny_llama, "--drafter", "lookahead", "--json", "-o", table)
    assert "1 of 2 decodings are in" in again.err  # plain decoding does not depend on heads


def test_a_head_of_another_model_is_refused_before_the_model_is_loaded(
    no_weights: Path, head: Path
) -> None:
    refused(bench(no_weights, "--drafter", f"head:{head}"), 2, "head", "")
    refused(bench(no_weights, "--drafter", "head:nowhere"), 2, "nowhere does not exist", "path")


def test_arms_of_heads_are_named_by_what_tells_them_apart() -> None:
    def way(*drafters: str) -> Way:
        settings = DrafterSettings(drafters)
        return Way(settings.name, "auto", settings)

    found = short_heads(
        (
            PLAIN,
            way("head:/a/long/path/first/head"),
            way("head:/a/long/path/second/head"),
            way("ngram", "head:models/small.gguf"),
            way("draft:/a/model"),
        )
    )
    assert [one.name for one in found] == [
        *("ar", "head:first/head", "head:second/head", "ngram,head:small.gguf", "draft:/a/model"),
    ]
