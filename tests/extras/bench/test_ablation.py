"""`trtla bench --ablation` and `--arms` on the tiny random model: rows, resuming, refusals."""

from __future__ import annotations

import csv
import math
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.command import ROOT, Ran, holding, refused, trtla
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.cli.app import execute
from trtla.data.prompt_sets import Ids, load_sets
from trtla.errors import UsageError
from trtla.extras.bench.arms import ABLATION
from trtla.extras.bench.decoding_table import DecodingTable, check_decodings
from trtla.extras.bench.documents import Decoding
from trtla.measuring.arms import EngineArm

ARMS = (
    "ar", "sd", "egag", "nasd", "prompt-lookup", "lookahead 3,3,2", "lookahead-auto", "chain"
)  # fmt: skip


def command(model: Path, output: Path, *args: str | Path) -> list[str]:
    small = ("--num-prompts", "1", "--rounds", "2", "--max-output-len", "8", "--threads", "1")
    return [
        "bench", "--engine-dir", str(model), "--draft-model", str(model), "--lookahead", "3,3,2",
        "--output", str(output), *small, *map(str, args),
    ]  # fmt: skip


def ablation(model: Path, output: Path, *args: str | Path) -> Ran:
    return trtla(*command(model, output, "--ablation", *args))


def listed(folder: Path, *arms: str, more: str = "") -> Path:
    """A file of arms."""
    path = folder / "arms.yaml"
    path.write_text("arms:\n" + "".join(f"  - {{{arm}}}\n" for arm in arms) + more)
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def table(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prompts, one of them with a reference."""
    path = tmp_path_factory.mktemp("ablation") / "results.csv"
    ran = ablation(model, path, "--categories", "translation,code", "--output-format", "csv")
    assert ran.code == 0, ran.err
    assert "bench: 96 of 96 decodings" in ran.err  # with those that warm up
    path.with_name("means.csv").write_text(ran.out)
    return path


def test_each_arm_has_a_decoding_for_each_prompt_processor_and_seed(table: Path) -> None:
    rows = read(table)
    assert list(rows[0]) == list(Decoding.model_fields)
    assert Counter(row["arm"] for row in rows) == dict.fromkeys(ARMS, 2 * 2 * 2)
    case = ("category", "prompt", "temperature", "seed")
    order = list(dict.fromkeys(tuple(row[key] for key in case) for row in rows))
    grouped = [[row for row in rows if tuple(row[key] for key in case) == one] for one in order]
    assert [row for group in grouped for row in group] == rows
    assert all(tuple(row["arm"] for row in group) == ARMS for group in grouped)
    assert {(row["seed"], row["round"]) for row in rows} == {("0", "1"), ("1", "2")}


def test_the_arms_have_the_settings_of_the_comparison(table: Path) -> None:
    found = {row["arm"]: row["setting"] for row in read(table)}
    ngrams = "gamma 4, ngram_kind basic, ngram_order 3, top_k_filler 3"
    assert found == {
        "ar": "",
        "sd": "gamma 4",
        "egag": "egag, gamma_max 6, ema 0.9",
        "nasd": ngrams,
        "prompt-lookup": "gamma 4",
        "lookahead 3,3,2": "",
        "lookahead-auto": "",
        "chain": ngrams,
    }
    filters = {tuple(row[n] for n in ("temperature", "top_k", "top_p")) for row in read(table)}
    assert filters == {("0.0", "0", "1.0"), ("0.8", "0", "0.9")}


def test_decodings_agree_with_themselves_and_with_plain_decoding(table: Path) -> None:
    for row in read(table):
        number = {n: float(row[n]) for n in ("output_tokens", "steps", "drafted", "accepted")}
        assert row["equal_texts"] == row["texts"] == "1", row
        # The last step may end within its draft, without a token of the target's own.
        own = number["steps"] + number["accepted"] + 1 - number["output_tokens"]
        assert own == 0 or (own == 1 and row["arm"] in ARMS[-3:])
        assert number["output_tokens"] == 8
        assert number["accepted"] <= number["drafted"]
        assert (row["rougeL"] == "") == (row["category"] == "code")
        assert (row["mean_entropy"] != "") == (row["arm"] == "egag")
        if row["arm"] == "ar":
            assert (row["drafted"], row["acceptance_rate"]) == ("0", "")
            assert float(row["speedup_vs_ar"]) == 1
        if row["arm"] in ("sd", "egag"):  # the draft model is the model itself
            assert float(row["acceptance_rate"]) == 1
            assert row["draft_forwards"] == row["drafted"]


def test_rows_are_over_the_repeats_of_each_task_and_over_all_tasks(table: Path) -> None:
    decodings, rows = read(table), read(table.with_name("means.csv"))
    assert [row["arm"] for row in rows] == [*ARMS] * 3 * 2
    assert Counter(row["category"] for row in rows) == dict.fromkeys(
        ("translation", "code", "all"), len(ARMS) * 2
    )
    for row in rows:
        own = [
            one for one in decodings
            if all(one[n] == row[n] for n in ("arm", "temperature"))
            and row["category"] in (one["category"], "all")
        ]  # fmt: skip
        assert (int(row["texts"]), int(row["rounds"])) == (len(own), 2)
        for name in ("steps", "drafted", "accepted", "output_tokens", "equal_texts"):
            assert int(row[name]) == sum(int(one[name]) for one in own)
        assert float(row["perplexity"]) == pytest.approx(
            mean(float(one["perplexity"]) for one in own)
        )
        if row["category"] != "all":  # one decoding a round
            speeds = [float(one["tokens_per_s"]) for one in own]
            assert float(row["tokens_per_s"]) == pytest.approx(median(speeds))
            assert float(row["tokens_per_s_max"]) == max(speeds)


def test_perplexity_is_the_targets_own_of_the_text(table: Path, model: Path) -> None:
    """Against transformers; a text has one, whoever drafted and whatever drew it."""
    rows = read(table)
    found: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        found.setdefault((row["category"], row["output_sha256"]), set()).add(row["perplexity"])
    assert all(len(one) == 1 for one in found.values())
    assert len({cell for one in found.values() for cell in one}) == len(found) > 2
    prompt = load_sets(["ablation"], ("code",), 1)[0].texts[0]
    with LLM(model, lookahead=LookaheadConfig(1, 1, 0)) as llm:
        llm.end_ids = frozenset()
        drawn = SamplingParams(8, temperature=0.8, top_p=0.9, seed=1)
        for sampling, heat in ((SamplingParams(8), "0.0"), (drawn, "0.8")):
            [done] = llm.generate(prompt, sampling)
            [cell] = {
                row["perplexity"] for row in rows
                if (row["category"], row["temperature"], row["seed"]) == ("code", heat, "1")
            }  # fmt: skip
            scores = transformers_log_probs(model, done.input_ids, done.output_ids)
            assert float(cell) == pytest.approx(math.exp(-mean(scores)), rel=1e-3)


def transformers_log_probs(model: Path, prompt: Ids, output: Ids) -> list[float]:
    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.inference_mode():
        logits = target(torch.tensor([[*prompt, *output]])).logits[0].double()
    rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return [row[token].item() for row, token in zip(rows, output, strict=True)]


def test_texts_are_scored_once_and_untimed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored, score, now = [], LLM.log_probs, time.perf_counter

    def slow(self, *text):
        scored.append(text)
        return score(self, *text)

    # Every scoring takes a day.
    clock = SimpleNamespace(perf_counter=lambda: now() + 86400 * len(scored))
    monkeypatch.setattr("trtla.measuring.arms.time", clock)

    monkeypatch.setattr(LLM, "log_probs", slow)
    path = tmp_path / "results.csv"
    ran = ablation(model, path, "--categories", "code", "--processor", "greedy,nucleus:2:0.9")
    assert ran.code == 0, ran.err
    rows = read(path)
    assert len(rows) == len(ARMS) * 2 * 2
    assert len(scored) == len(set(scored)) == 3  # greedy, and two seeds
    assert max(float(row["ttft_ms"]) for row in rows) < 86400


def test_what_the_table_has_is_not_decoded_again(
    table: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = tmp_path / "results.csv", table.read_text()
    path.write_text(text)
    same = ("--categories", "translation,code")
    with monkeypatch.context() as patch:
        patch.setattr(EngineArm, "decode", lambda *_: pytest.fail("an arm decodes"))
        ran = ablation(model, path, *same)
    assert ran.code == 0, ran.err
    assert f"note: 64 of 64 decodings are in {path}" in ran.err
    assert path.read_text() == text
    # A half-written line is cut off, and its arm decodes next to plain decoding.
    path.write_text(text[:-40])
    assert ablation(model, path, *same).code == 0
    timed = lambda path: [(row["arm"], row["output_sha256"]) for row in read(path)]  # noqa: E731
    assert timed(path) == timed(table)
    assert path.read_text().startswith(text[: text.rstrip("\n").rfind("\n") + 1])
    monkeypatch.setattr("trtla.extras.bench.sweep.cpu", lambda: SimpleNamespace(model="x", cores=9))
    other = ablation(model, path, "--categories", "code", "--processor", "greedy", "--rounds", "1")
    assert other.code == 0, other.err
    assert [row["machine"] for row in read(path)][64:] == ["x, 9 cores"] * 8


def test_one_run_at_a_time_appends_to_a_table(table: Path, tmp_path: Path) -> None:
    path, text = tmp_path / "results.csv", table.read_bytes()
    half = text[:-40]
    path.write_bytes(half)
    with DecodingTable(path) as first:
        whole, wanted = path.read_bytes(), len(first.rows)
        with pytest.raises(UsageError, match=f"another run appends to {path}"):
            DecodingTable(path)
        path.write_bytes(half)  # the first run writes a row
        check_decodings(path)
        assert path.read_bytes() == half
    assert whole == half[: half.rfind(b"\n") + 1]
    with DecodingTable(path) as again:
        assert len(again.rows) == wanted


@pytest.mark.parametrize("start", ["\ufeff", "", "half a header"])
def test_a_half_line_is_cut_off_to_the_byte(table: Path, tmp_path: Path, start: str) -> None:
    path, text = tmp_path / "results.csv", table.read_text()
    row = next(csv.DictReader(text.splitlines()))
    lines = text.splitlines()[:2]
    whole = "".join(f"{line}\r\n" for line in lines).encode("utf-8-sig" if start else "utf-8")
    whole = b"" if "half" in start else whole
    path.write_bytes(whole + (text[:20].encode() if not whole else "é".encode()[:1]))
    with DecodingTable(path) as found:
        assert list(found.rows) == [row["key"]][: len(whole)]
        assert path.read_bytes() == whole
        found.append([Decoding.model_validate({k: x for k, x in row.items() if x})])
    with DecodingTable(path) as found:
        assert list(found.rows) == [row["key"]]


@pytest.mark.deep
def test_a_killed_run_keeps_its_rows_and_goes_on(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    args = command(model, path, "--ablation", "--categories", "dialogue,code")
    started = subprocess.Popen(
        [*holding("trtla.extras.bench.decoding_table:DecodingTable.append", 40), *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    while started.poll() is None:
        if path.exists() and path.read_text().count("\n") > 3 * 8:
            started.send_signal(signal.SIGKILL)
            break
        time.sleep(0.005)
    assert started.wait() == -signal.SIGKILL
    kept = path.read_text()
    turns = len(read(path))
    assert 3 * 8 <= turns < 64
    ran = trtla(*args)
    assert ran.code == 0, ran.err
    assert f"note: {turns} of 64 decodings are in {path}" in ran.err
    assert path.read_text().startswith(kept)
    rows = read(path)
    assert len(rows) == len({row["key"] for row in rows}) == 64
    assert all(row["equal_texts"] == "1" for row in rows)


def test_an_interrupt_prints_the_rows_so_far(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, calls, decode = tmp_path / "results.csv", list[str](), EngineArm.decode

    def interrupted(arm, *work):
        calls.append(arm.name)
        if len(calls) > 2 + 2 + 1:  # warmed up, a whole turn, plain decoding of the second
            raise KeyboardInterrupt
        return decode(arm, *work)

    monkeypatch.setattr(EngineArm, "decode", interrupted)
    arms = listed(tmp_path, "name: nasd, drafter: ngram", more="processor: [greedy]\n")
    chosen = ("--arms", arms, "--prompts", "code")
    with pytest.raises(KeyboardInterrupt):
        execute(command(model, path, *chosen))
    out, err = capsys.readouterr()
    assert "interrupted; this is what was measured, and the same command resumes" in err
    assert [row["arm"] for row in read(path)] == ["ar", "nasd"]
    assert "| nasd " in out


def test_an_arm_that_is_added_decodes_alone_next_to_plain_decoding(
    model: Path, tmp_path: Path
) -> None:
    path, nasd = tmp_path / "results.csv", "name: nasd, drafter: ngram, gamma: 2"
    args = ("--prompts", "ablation", "--categories", "code", "--processor", "greedy", "--json")
    first = trtla(*command(model, path, *args, "--arms", listed(tmp_path, nasd)))
    assert first.code == 0, first.err
    sources = "name: nodes, lookahead: auto, nodes: 2, sources: [context, requests]"
    more = listed(tmp_path, nasd, nasd.replace("2", "20"), sources)
    ran = trtla(*command(model, path, *args, "--arms", more))
    assert ran.code == 0, ran.err
    arms = [(row["arm"], row["setting"]) for row in read(path)]
    before = [("ar", ""), ("nasd", "gamma 2")]
    assert arms == before * 2 + [("nasd", "gamma 20"), ("nodes", "nodes 2")] * 2
    rows = {(row["arm"], row["setting"]): row for row in ran.json["rows"]}
    assert rows["nasd", "gamma 2"] == first.json["rows"][1]
    assert set(rows["nodes", "nodes 2"]["sources"]) <= {"context", "requests", "agreement"}
    for row in rows.values():
        assert (row["equal_texts"], row["texts"], row["rounds"]) == (2, 2, 2)
        assert sum(row["accepted_per_pos"]) == pytest.approx(row["accepted"] / row["steps"])


def test_bad_arms_are_refused_before_a_model_is_loaded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_llama: Path
) -> None:
    monkeypatch.setattr("trtla.llm.llm.LLM", lambda *_, **__: pytest.fail("a model is loaded"))
    path = tmp_path / "results.csv"
    for arm, parts in (
        ("name: a, drafter: medusa", ("medusa", "prompt-lookup")),
        ("drafter: ngram, gama: 3", ("arm 1", '"gama"', "did you mean gamma?")),
        ("drafter: ngram, gamma: 0", ("arm 1", "gamma is 0")),
        ("drafter: ngram, ngram_kind: both", ("both", "basic")),
        ("drafter: draft, egag: true, ema: 1", ("ema is 1",)),
        ("name: ar", ("two arms are named ar",)),
        ("lookahead: 5", ("arm 1", "5")),
        ("lookahead: auto, sources: [own]", ("source 'own'",)),
    ):
        refused(trtla(*command(model, path, "--arms", listed(tmp_path, arm))), 2, *parts)
    good = listed(tmp_path, "drafter: ngram", more="promps: [code]\n")
    refused(trtla(*command(model, path, "--arms", good)), 2, "promps", "did you mean prompts?")
    empty = tmp_path / "empty.yaml"
    empty.write_text("prompts: [code]\n")
    refused(trtla(*command(model, path, "--arms", empty)), 2, "lists no arms")
    ran = trtla(*command(model, path, "--arms", "ngram"))
    refused(ran, 2, "--arms ngram: there is no such file", "--drafter", "configs/ablation.yaml")
    for args, parts in (
        (("--arms", good), ("--ablation is --arms",)),
        (("--drafter", "ngram"), ("--drafter and --ablation exclude each other",)),
        (("--processor", "nucleus:0.8:1.5"), ("top_p", "1.5")),
        (("--rounds", "0"), ("0",)),
        (("--categories", "poems"), ("poems", "dialogue")),
        (("--draft-model", tiny_llama), ("in the draft model", "same tokenizer")),
        (("--output", tmp_path / "no" / "results.csv"), ("does not exist",)),
        (("--output", "/proc/results.csv"), ("/proc/results.csv cannot be written",)),
    ):
        if args[0] == "--arms":
            listed(tmp_path, "drafter: ngram")
        refused(ablation(model, path, *args), 2, *parts)
    path.write_text("a,b\n1,2\n")
    refused(ablation(model, path), 2, "not a table of decodings of this version", "--output")
    assert path.read_text() == "a,b\n1,2\n"


def test_the_shipped_file_is_in_the_presets() -> None:
    assert (ROOT / "configs" / "ablation.yaml").read_text() == ABLATION.read_text()
