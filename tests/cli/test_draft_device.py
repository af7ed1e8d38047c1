"""--draft-device and --draft-dtype: the draft model beside the target, the same text, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import known, needs, refused, trtla

TEXTS = ("--input-text", "abcabcabcabc", "aaaa", "--max-output-len", "21", "--json")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "auto"])
@pytest.mark.parametrize("heat", ["0", "0.8"])
def test_a_draft_model_in_another_type_changes_no_text(
    engine: Path, model: Path, dtype: str, heat: str
) -> None:
    given = ("run", "--engine-dir", engine, *TEXTS, "--temperature", heat)
    place = ("--draft-dtype", dtype, "--draft-device", "cpu")
    ran = trtla(*given, "--drafter", f"draft:{model}", *place, "--check-lossless")
    assert ran.code == 0, ran.err
    stats = ran.json["stats"]
    # How many near-ties 16 bits turn depends on the processor; of a model that has nothing to do
    # with the target, 1 draft in 258 would be right.
    assert stats["accepted"] > 0.5 * stats["drafted"] > 0
    plain = trtla(*given, "--no-lookahead").json["results"]
    assert [r["output_ids"] for r in ran.json["results"]] == [r["output_ids"] for r in plain]


def test_prompts_that_bring_a_draft_model_place_it_too(
    engine: Path, model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"text": "abc", "drafter": f"draft:{model}"}))
    given = ("--engine-dir", engine, "--input-file", file, "--json")
    ran = trtla("run", *given, "--draft-dtype", "bfloat16")
    assert ran.code == 0, ran.err
    assert ran.json["results"][0]["accepted"] > 0


@needs("bench")
def test_bench_and_summarize_place_it_as_well(engine: Path, model: Path, articles: Path) -> None:
    place = ("--drafter", f"draft:{model}", "--draft-device", "cpu", "--draft-dtype", "bfloat16")
    ran = trtla(
        "bench", "--engine-dir", engine, *place, "--prompts", "code", "--num-prompts", "1",
        "--max-output-len", "8", "--rounds", "1", "--temperature", "0", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert all(row["equal_texts"] == row["texts"] for row in ran.json["rows"]), ran.json["rows"]
    ran = trtla(
        "summarize", "--engine-dir", engine, "--dataset", articles, *place, "--max-output-len", "6",
        "--max-input-len", "100", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    ours, plain = ran.json["rows"]
    assert ours["output_tokens"] == plain["output_tokens"]
    assert ours["tokens_per_step"] > 1.5


@needs("bench")
def test_rows_of_an_ablation_are_of_their_draft_models_type(
    engine: Path, model: Path, tmp_path: Path
) -> None:
    rows, arms, prompts = (tmp_path / name for name in ("rows.csv", "arms.yaml", "prompts.txt"))
    arms.write_text("arms: [{name: sd, drafter: draft}]\n")
    prompts.write_text("abc\n")
    given = (
        "bench", "--arms", arms, "--engine-dir", engine, "--draft-model", model, "--output", rows,
        "--prompts", prompts, "--processor", "greedy", "--rounds", "1", "--max-output-len", "6",
    )  # fmt: skip
    for flags, kept in (((), False), (("--draft-dtype", "bfloat16"), False), ((), True)):
        ran = trtla(*given, *flags)
        assert ran.code == 0, ran.err
        assert ("note: 2 of 2 decodings are in " in ran.err) is kept
    arms.write_text("arms: [{name: nasd, drafter: ngram}]\n")
    ran = trtla(*given, "--draft-dtype", "bfloat16")
    refused(ran, 2, "draft_dtype bfloat16 needs a draft model")


@pytest.mark.parametrize(
    ("flag", "value"), [("--draft-device", "cpu"), ("--draft-dtype", "bfloat16")]
)
def test_without_a_draft_model_they_are_refused_before_a_model_is_loaded(
    no_weights: Path, articles: Path, flag: str, value: str
) -> None:
    message = f"{flag[2:].replace('-', '_')} {value} needs a draft model"
    for command in known(
        ("run", "--input-text", "a"),
        ("run", "--input-text", "a", "--drafter", "ngram,lookahead"),
        ("bench", "--drafter", "ngram", "prompt-lookup"),
        ("summarize", "--dataset", articles),
    ):
        ran = trtla(*command, "--engine-dir", no_weights, flag, value)
        refused(ran, 2, message, "--drafter draft:PATH", f"omit {flag}")


@pytest.mark.parametrize("flag", [("--draft-device", "tpu"), ("--draft-dtype", "float64")])
def test_other_names_are_refused(no_weights: Path, flag: tuple[str, str]) -> None:
    given = ("--input-text", "a", "--drafter", f"draft:{no_weights}")
    refused(trtla("run", "--engine-dir", no_weights, *given, *flag), 2, flag[0], flag[1])
