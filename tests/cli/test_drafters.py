"""--drafter and its flags: bad input before a model is loaded (I15), equal texts, bench's arms."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click
import pytest

from tests.support.command import known, needs, refused, there, trtla
from trtla.cli.commands import COMMANDS
from trtla.settings.drafting import DrafterSettings
from trtla.settings.fields import declared

TEXTS = ("--input-text", "abcabcabcabc", "aaaa", "--json")


@pytest.fixture(scope="module")
def plain_engine(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of (1,1,0)."""
    folder = tmp_path_factory.mktemp("plain") / "engine"
    ran = trtla(
        "build", "--checkpoint-dir", checkpoint, "--output-dir", folder, "--lookahead", "1,1,0",
        "--max-batch-size", "2", "--max-input-len", "64", "--max-seq-len", "128",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return folder


def other_tokenizer(model: Path, folder: Path) -> Path:
    shutil.copytree(model, folder)
    said = json.loads((folder / "tokenizer.json").read_text())
    words = said["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    (folder / "tokenizer.json").write_text(json.dumps(said))
    return folder


BAD = [
    (("--gamma", "0"), "gamma is 0", "the drafter none"),
    (("--ngram-order", "1"), "ngram_order is 1", "from 2"),
    (("--top-p", "1.5"), "top_p is 1.5", "--top-p"),
    (("--gamma-min", "5", "--gamma-max", "2"), "gamma_min 5 is above gamma_max 2", "--gamma-max"),
    (("--ema", "1"), "ema is 1.0", "below 1"),
    (("--top-k-filler", "0"), "top_k_filler is 0", "--top-k-filler"),
    (("--drafter", "medusa"), "'medusa' is not known", "prompt-lookup"),
    (("--drafter", "draft:"), "names no draft model", "draft:PATH"),
    (("--drafter", "ngram,ngram"), "ngram is named twice", "once"),
    (("--drafter", "draft:nowhere"), "nowhere does not exist", "check the path"),
    (("--drafter", "ngram", "--egag"), "egag needs a draft model", "--drafter draft:PATH"),
    (("--drafter", "ngram", "--rejection"), "rejection needs a draft model", "draft:PATH"),
]


@pytest.mark.parametrize(("flags", "message", "hint"), BAD)
def test_run_refuses_bad_values_before_a_model_is_loaded(no_weights, flags, message, hint) -> None:
    refused(trtla("run", "--engine-dir", no_weights, "--input-text", "a", *flags), 2, message, hint)


def test_texts_of_another_draw_are_not_compared(no_weights: Path) -> None:
    flags = ("--drafter", f"draft:{no_weights}", "--rejection", "--check-lossless")
    ran = trtla("run", "--engine-dir", no_weights, "--input-text", "a", *flags)
    refused(ran, 2, "rejection", "omit --check-lossless")


@needs("bench")
def test_bench_and_summarize_refuse_them_as_well(no_weights: Path, articles: Path) -> None:
    for flags, message, hint in BAD:
        if flags[0] == "--top-p":
            continue
        refused(trtla("bench", "--engine-dir", no_weights, "--drafter", "ngram", *flags), 2, hint)
        asked = ("summarize", "--engine-dir", no_weights, "--dataset", articles)
        refused(trtla(*asked, *flags), 2, message)


def test_another_tokenizer_is_refused_with_a_token_of_both(
    no_weights: Path, tmp_path: Path
) -> None:
    draft = other_tokenizer(no_weights, tmp_path / "draft")
    asked = ("--engine-dir", no_weights, "--drafter", f"draft:{draft}")
    for command in known(("run", "--input-text", "a"), ("bench",)):
        refused(trtla(*command, *asked), 2, "is 'b' in the draft", "is 'a' in", "same tokenizer")


def test_prompt_files_refuse_bad_drafters_with_their_line(no_weights: Path, tmp_path: Path) -> None:
    for line, message in (
        ({"gamma": 0}, "gamma is 0"),
        ({"drafter": "medusa"}, "'medusa' is not known"),
        ({"drafter": ["ngram", "none"]}, "none cannot be combined with others"),
        ({"ngram_order": 1}, "ngram_order is 1"),
        ({"ngram_kind": "both"}, "ngram_kind"),
    ):
        file = tmp_path / "prompts.jsonl"
        file.write_text('{"text": "a"}\n' + json.dumps({"text": "b", **line}))
        ran = trtla("run", "--engine-dir", no_weights, "--input-file", file)
        refused(ran, 2, "line 2 of", message)


def test_a_plain_engine_drafts_with_ngrams_and_says_the_same(plain_engine: Path) -> None:
    for heat in ("0", "0.8"):
        given = ("--engine-dir", plain_engine, *TEXTS, "--temperature", heat)
        plain = trtla("run", *given).json
        for drafter in ("ngram", "prompt-lookup", "ngram,prompt-lookup,lookahead"):
            ran = trtla("run", *given, "--drafter", drafter, "--gamma", "4", "--check-lossless")
            assert ran.code == 0, ran.err
            assert ran.json["stats"]["drafted"] > 0 or heat == "0.8", drafter
            for ours, theirs in zip(ran.json["results"], plain["results"], strict=True):
                assert ours["output_ids"] == theirs["output_ids"]
                assert (ours["drafter"], ours["lossless"]) == (drafter, True)


def test_a_text_may_fill_a_plain_engine_to_the_end(plain_engine: Path, tmp_path: Path) -> None:
    ids = [97, 98] * 20
    file = tmp_path / "long.jsonl"
    lines = [{"input_ids": ids, "max_output_len": 88, "drafter": "ngram", "gamma": 16}] * 2
    file.write_text("\n".join(map(json.dumps, lines)))
    ran = trtla("run", "--engine-dir", plain_engine, "--input-file", file, "--json")
    assert ran.code == 0, ran.err
    assert [len(result["output_ids"]) for result in ran.json["results"]] == [88, 88]


def test_a_model_that_drafts_for_itself_is_always_right(engine: Path, model: Path) -> None:
    given = ("--engine-dir", engine, *TEXTS, "--max-output-len", "21")
    for flags in ((), ("--egag", "--gamma-min", "4")):
        ran = trtla("run", *given, "--drafter", f"draft:{model}", *flags)
        assert ran.code == 0, ran.err
        assert ran.json["stats"]["tokens_per_step"] == 5.0


def test_every_prompt_of_a_file_may_have_a_drafter_of_its_own(
    engine: Path, model: Path, tmp_path: Path
) -> None:
    names = ["none", "lookahead", "ngram", ["prompt-lookup", "ngram"], f"draft:{model},lookahead"]
    lines = [{"text": "abcabcabc", "drafter": name, "gamma": 3} for name in names]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    ran = trtla("run", "--engine-dir", engine, "--input-file", file, "--check-lossless", "--json")
    assert ran.code == 0, ran.err
    found = ran.json["results"]
    assert [one["drafter"] for one in found] == [
        ",".join(name) if isinstance(name, list) else name for name in names
    ]
    assert len({tuple(one["output_ids"]) for one in found}) == 1
    assert found[0]["drafted"] == 0 < found[4]["accepted"]
    assert found[2]["lookahead"] == [1, 1, 0]


@needs("bench")
def test_bench_has_an_arm_for_every_drafter(plain_engine: Path) -> None:
    ran = trtla(
        "bench", "--engine-dir", plain_engine, "--drafter", "ngram", "prompt-lookup,ngram", "none",
        "--prompts", "code", "--num-prompts", "1", "--max-output-len", "8", "--rounds", "1",
        "--temperature", "0", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    rows = {row["arm"]: row for row in ran.json["rows"]}
    assert list(rows) == ["ar", "ngram", "prompt-lookup,ngram"]
    assert all(row["equal_texts"] == row["texts"] == 1 for row in rows.values()), rows


def test_the_commands_share_the_flags() -> None:
    names = (*declared(DrafterSettings), "draft_device", "draft_dtype")
    for command in there("run", "bench", "summarize"):
        params = {p.name: p for p in COMMANDS[command].params}
        assert {getattr(params[name], "section", None) for name in names} == {
            params["drafter"].section
        }


CELLS = ("--lookahead-cells", "drawn")
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
    plain, drafted = told(decode(engine)), told(decode(engine, *CELLS))
    assert drafted[0] == plain[0]
    assert drafted[1] != plain[1]


def test_commands_that_decode_share_the_flags() -> None:
    for name in there("run", "chat", "explain", "bench", "summarize"):
        command = COMMANDS[name]
        found = [p for p in command.params if getattr(p, "section", "") == "Lookahead drafting"]
        assert [p.opts[0] for p in found] == [CELLS[0], "--lookahead-sources", "--lookahead-nodes"]
        assert all(isinstance(p, click.Option) and p.help for p in found)


def test_a_gamma_without_a_drafter_that_has_a_use_for_it_is_said(tiny_llama: Path) -> None:
    line = ("run", tiny_llama, "-p", "def f(x):", "-n", "4", "--gamma", "3")
    for drafter in ("lookahead", "none"):
        note = f"note: --gamma has no effect on the drafter {drafter}"
        assert note in trtla(*line, "--drafter", drafter).err.splitlines()
    for used in ("ngram", "lookahead,prompt-lookup"):
        assert "--gamma" not in trtla(*line, "--drafter", used).err
    assert "--gamma" not in trtla(*line[:-2]).err
