"""Lookahead `auto` on the command line: the flag, a prompt's own, the table's file, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import refused, trtla
from tests.support.trtllm_engines import write_engine

PROMPT = ("--input-text", "abcabcabcabc", "--max-output-len", "24", "--json")


@pytest.fixture
def copied(engine: Path, tmp_path: Path) -> Path:
    """An engine folder of its own, with the files of the session's but for costs."""
    folder = tmp_path / "engine"
    folder.mkdir()
    for path in set(engine.iterdir()) - set(engine.glob("trtla-cost-*")):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.usefixtures("measured_costs")
def test_auto_is_the_default_says_what_plain_decoding_says_and_keeps_its_costs(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through PyTorch's operations, whose costs nothing ships."""
    monkeypatch.setenv("TRTLA_COMPILED", "0")
    ran = trtla("run", "--engine-dir", copied, *PROMPT, "--check-lossless")
    assert ran.code == 0, ran.err
    (result,) = ran.json["results"]
    assert result["lossless"] is True
    assert result["lookahead"] == [4, 3, 4]
    (kept,) = copied.glob("trtla-cost-*.json")
    assert json.loads(kept.read_text())["rows"][0]["sequences"] == 1
    again = trtla("run", "--engine-dir", copied, *PROMPT, "--lookahead", "auto")
    assert again.json["results"][0]["output_ids"] == result["output_ids"]
    assert trtla("inspect", copied).code == 0


@pytest.mark.parametrize("lookahead", ["4,3,4", "1,1,0"])
def test_a_triple_that_is_named_is_what_runs(copied: Path, lookahead: str) -> None:
    """No cost is measured for it, whatever other requests would be decoded with."""
    fed = []
    for flags in ((), ("--lookahead", "4,3,4")):
        flags = (*flags, "--request-lookahead", lookahead)
        ran = trtla("run", "--engine-dir", copied, *PROMPT, *flags)
        assert ran.code == 0, ran.err
        (result,) = ran.json["results"]
        assert result["lookahead"] == [int(part) for part in lookahead.split(",")]
        fed.append(result["drafted"])
    assert fed[0] == fed[1]
    assert (fed[0] == 0) == (lookahead == "1,1,0")
    assert not list(copied.glob("trtla-cost-*.json"))


def test_prompts_choose_for_themselves(copied: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    lines = [{"text": "one", "lookahead": "auto", "drafter": "lookahead"}, {"text": "one"}]
    file.write_text("\n".join(map(json.dumps, lines)))
    given = ("--input-file", file, "--lookahead", "4,3,4", "--json")
    ran = trtla("run", "--engine-dir", copied, *given)
    assert ran.code == 0, ran.err
    first, second = ran.json["results"]
    assert first["output_ids"] == second["output_ids"]
    assert not list(copied.glob("trtla-cost-*.json"))  # nobody waits for a measurement
    ran = trtla("run", "--engine-dir", copied, *PROMPT, "--request-lookahead", "auto")
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("flag", ["--lookahead", "--request-lookahead"])
def test_compiled_engines_refuse_it(tmp_path: Path, flag: str) -> None:
    folder = write_engine(tmp_path / "compiled", max_draft_len=0)
    ran = trtla("run", "--engine-dir", folder, *PROMPT[:2], flag, "auto")
    refused(ran, 2, "lookahead auto, but TensorRT-LLM feeds", "--backend torch")


@pytest.mark.usefixtures("measured_costs")
@pytest.mark.parametrize(("seconds", "said"), [(40.0, True), (1.0, False)])
def test_run_reports_a_triple_that_costs_more_than_it_brings(
    copied: Path, seconds: float, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the costs that were kept beside the engine: here a made-up price of 16 fed tokens."""
    monkeypatch.setenv("TRTLA_COMPILED", "0")
    args = ("run", "-m", copied, "-p", "abab", "-n", "24")
    assert trtla(*args, "--lookahead", "auto").code == 0
    (kept,) = copied.glob("trtla-cost-*.json")
    rows = [{"sequences": 1, "points": [[1, 1.0], [16, seconds]]}]
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "rows": rows}))
    args = (*args, "--lookahead", "4,3,4")
    ran = trtla(*args)
    assert ("note: 4,3,4 fed " in ran.err) is said
    assert ("times as fast here; try --request-lookahead auto\n" in ran.err) is said
    for other in ("--request-lookahead=auto", "--no-lookahead", "--check-lossless", "--quiet"):
        assert " fed " not in trtla(*args, other).err
