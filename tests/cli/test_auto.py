"""Lookahead `auto` on the command line: the flag, a prompt's own, what is kept, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import refused, trtla
from tests.support.trtllm_engines import write_engine

PROMPT = ("--input-text", "abcabcabcabc", "--max-output-len", "24", "--json")


@pytest.fixture
def kept(own_cache: Path) -> Callable[[], list[Path]]:
    """What is known of steps in the user's cache, in which there was nothing."""
    return lambda: sorted(own_cache.rglob("trtla-cost-*.json"))


@pytest.mark.usefixtures("measured_costs")
def test_auto_is_the_default_says_what_plain_decoding_says_and_keeps_what_steps_took(
    engine: Path, kept: Callable[[], list[Path]]
) -> None:
    ran = trtla("run", "--engine-dir", engine, *PROMPT, "--check-lossless")
    assert ran.code == 0, ran.err
    (result,) = ran.json["results"]
    assert result["lossless"] is True
    assert result["lookahead"] == [4, 3, 4]
    (file,) = kept()
    learnt = json.loads(file.read_text())["sequences"]
    assert set(learnt) == {"1"}
    again = trtla("run", "--engine-dir", engine, *PROMPT, "--lookahead", "auto")
    assert again.json["results"][0]["output_ids"] == result["output_ids"]
    assert kept() == [file]
    assert not list(engine.glob("trtla-cost-*"))


@pytest.mark.parametrize("flags", [("--no-lookahead",), ("--drafter", "none")])
def test_comparing_plain_decoding_with_itself_is_noted(engine, flags):
    ran = trtla("run", "--engine-dir", engine, *PROMPT, "--check-lossless", *flags)
    assert "note: nothing is drafted: --check-lossless decodes plainly twice" in ran.err


@pytest.mark.parametrize("lookahead", ["4,3,4", "1,1,0"])
def test_a_triple_that_is_named_is_what_runs(engine: Path, lookahead: str) -> None:
    fed = []
    for flags in ((), ("--lookahead", "4,3,4")):
        flags = (*flags, "--request-lookahead", lookahead)
        ran = trtla("run", "--engine-dir", engine, *PROMPT, *flags)
        assert ran.code == 0, ran.err
        (result,) = ran.json["results"]
        assert result["lookahead"] == [int(part) for part in lookahead.split(",")]
        fed.append(result["drafted"])
    assert fed[0] == fed[1]
    assert (fed[0] == 0) == (lookahead == "1,1,0")


def test_prompts_choose_for_themselves(engine: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    lines = [{"text": "one", "lookahead": "auto", "drafter": "lookahead"}, {"text": "one"}]
    file.write_text("\n".join(map(json.dumps, lines)))
    given = ("--input-file", file, "--lookahead", "4,3,4", "--json")
    ran = trtla("run", "--engine-dir", engine, *given)
    assert ran.code == 0, ran.err
    first, second = ran.json["results"]
    assert first["output_ids"] == second["output_ids"]
    ran = trtla("run", "--engine-dir", engine, *PROMPT, "--request-lookahead", "auto")
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("flag", ["--lookahead", "--request-lookahead"])
def test_compiled_engines_refuse_it(tmp_path: Path, flag: str) -> None:
    folder = write_engine(tmp_path / "compiled", max_draft_len=0)
    ran = trtla("run", "--engine-dir", folder, *PROMPT[:2], flag, "auto")
    refused(ran, 2, "lookahead auto, but TensorRT-LLM feeds", "--backend torch")


@pytest.mark.usefixtures("measured_costs")
@pytest.mark.parametrize(
    ("price", "before", "after"), [(9.0, True, False), (2.0, False, True), (0.0, False, False)]
)
def test_run_reports_a_triple_that_costs_more_than_it_brings(
    engine: Path, price: float, before: bool, after: bool, kept: Callable[[], list[Path]]
) -> None:
    """By what steps have shown before: here a made-up price of 16 fed tokens."""
    args = ("run", "-m", engine, "-p", "abab", "-n", "24", "--temperature", "2")
    assert trtla(*args, "--lookahead", "auto").code == 0
    (file,) = kept()
    learnt = {"1": {"plain": 0.0, "prices": {"1": 1.0, "16": price}}}
    file.write_text(json.dumps({**json.loads(file.read_text()), "sequences": learnt}))
    args = (*args, "--lookahead", "4,3,4")
    ran = trtla(*args)
    certain = "times a plain step here and gives at most 3 tokens; auto feeds what pays"
    assert (certain in ran.err) is before
    assert ("note: 4,3,4 fed " in ran.err) is after
    assert ("plain decoding is faster; try --request-lookahead auto\n" in ran.err) is after
    for other in ("--request-lookahead=auto", "--no-lookahead", "--check-lossless", "--quiet"):
        assert " fed " not in trtla(*args, other).err
