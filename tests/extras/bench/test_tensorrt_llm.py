"""`trtla bench` on an engine of trtllm-build, run by the stand-in."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.support.command import Ran, refused, trtla
from tests.support.standin import Standin
from tests.support.standin_engines import build
from trtla import LLM, LookaheadConfig
from trtla.errors import UsageError
from trtla.runtime.device import CPU

pytestmark = pytest.mark.usefixtures("fake_gpu")


@pytest.fixture
def engine(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """(4,4,4), on a GPU that is not there to be measured."""
    from trtla.extras.bench import sweep

    monkeypatch.setattr(sweep, "resolve_device", lambda name: CPU)
    monkeypatch.setattr(sweep, "read_bandwidth", lambda device: 1e9)
    return build(standin, tiny_checkpoint, tmp_path / "engine")


def bench(engine: Path, tokenizer: Path, *args: str) -> Ran:
    return trtla(
        "bench", "--engine-dir", engine, "--tokenizer-dir", tokenizer, "--prompts", "code",
        "--num-prompts", "2", "--rounds", "1", "--max-output-len", "12", "--json", *args,
    )  # fmt: skip


def test_figures_that_the_library_does_not_tell_are_null(engine: Path, tiny_model: Path) -> None:
    ran = bench(engine, tiny_model, "--lookahead", "4,4,4", "2,2,2", "--temperature", "0")
    assert ran.code == 0, ran.err
    rows = ran.json["rows"]
    assert [row["arm"] for row in rows] == ["ar", "lookahead 4,4,4", "lookahead 2,2,2"]
    assert [row["equal_texts"] for row in rows] == [2, 2, 2]
    assert [row["output_tokens"] for row in rows] == [24, 24, 24]
    assert {row["fed_per_step"] for row in rows} == {None}
    for figure in ("host_ms_per_step", "read_gb_per_s", "share_of_bandwidth"):
        assert {row[figure] for row in rows} == {None}, figure
    assert rows[0]["tokens_per_step"] == 1.0 < rows[1]["tokens_per_step"]


def test_sampling_is_refused_before_anything_is_measured(engine: Path, tiny_model: Path) -> None:
    ran = bench(engine, tiny_model, "--lookahead", "4,4,4")
    assert ran.code == 2
    assert "greedy only" in ran.json["error"]["message"]
    assert "round" not in ran.err


def test_the_triple_of_such_an_engine_must_be_given(engine: Path, tiny_model: Path) -> None:
    ran = trtla("bench", "--engine-dir", engine, "--tokenizer-dir", tiny_model)
    refused(ran, 2, "--lookahead")


def test_an_ablation_has_no_perplexity_there(
    engine: Path, tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "results.csv"
    arms, prompts = tmp_path / "arms.yaml", tmp_path / "prompts.txt"
    arms.write_text("arms: [{drafter: lookahead}]\n")
    prompts.write_text("a b a b a b\n")
    ran = trtla(
        "bench", "--arms", arms, "--engine-dir", engine, "--tokenizer-dir", tiny_model,
        "--lookahead", "4,4,4", "--processor", "greedy", "--rounds", "1",
        "--prompts", prompts, "--max-output-len", "12", "--output", path,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    with path.open(newline="") as file:
        plain, fast = csv.DictReader(file)
    assert (plain["arm"], fast["arm"], fast["equal_texts"]) == ("ar", "lookahead 4,4,4", "1")
    assert plain["perplexity"] == fast["perplexity"] == fast["drafted"] == ""
    assert float(fast["tokens_per_step"]) > 1


def test_logits_are_asked_of_torch_engines_only(engine: Path) -> None:
    with (
        LLM(engine, lookahead=LookaheadConfig(4, 4, 4)) as llm,
        pytest.raises(UsageError, match="gives no logits"),
    ):
        llm.log_probs([1, 2], [3])
