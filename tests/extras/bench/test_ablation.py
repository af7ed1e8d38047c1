"""`trtla bench --ablation` on the tiny random model: decodings, resuming, rows, refusals."""

from __future__ import annotations

import csv
import json
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
from trtla.data.prompt_sets import Ids, load_sets
from trtla.extras.bench.ablation_arms import METHODS, TASK_FILES
from trtla.extras.bench.documents import Decoding

TIMES = (
    "time_s", "tokens_per_s", "tokens_per_s_min", "tokens_per_s_max", "ttft_ms", "ms_per_token",
    "speedup_vs_ar", "speedup_vs_ar_min", "speedup_vs_ar_max", "efficiency", "host_ms_per_step",
    "read_gb_per_s", "share_of_bandwidth", "peak_memory_mb",
)  # fmt: skip
"""What differs between two runs of one command."""
ARMS = ["lookahead 3,3,2" if name == "lookahead" else name for name in METHODS]


def command(model: Path, output: Path, *args: str | Path) -> list[str]:
    small = ("--prompts-per-task", "1", "--repeats", "2", "--max-output-len", "8", "--threads", "1")
    return [
        "bench", "--ablation", "--engine-dir", str(model), "--draft-model", str(model),
        "--lookahead", "3,3,2", "--output", str(output), *small, *map(str, args),
    ]  # fmt: skip


def ablation(model: Path, output: Path, *args: str | Path) -> Ran:
    return trtla(*command(model, output, *args))


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def measured(path: Path) -> list[dict[str, str]]:
    """The table without what each run finds out about the machine."""
    return [{**row, "share_of_bandwidth": ""} for row in read(path)]


@pytest.fixture(scope="module")
def table(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prompts, one of them with a reference."""
    path = tmp_path_factory.mktemp("ablation") / "results.csv"
    ran = ablation(model, path, "--categories", "translation,code")
    assert ran.code == 0, ran.err
    assert "bench: 96 of 96 decodings" in ran.err  # with those that warm up
    assert ran.out.count("| chain (") == 2  # a line a processor, over both tasks
    assert "**all, temperature 0.8, top-p 0.9, batch 1**" in ran.out
    return path


def test_each_arm_has_a_decoding_for_each_prompt_processor_and_seed(table: Path) -> None:
    rows = read(table)
    assert list(rows[0]) == [name for name in Decoding.model_fields if name in rows[0]]
    assert Counter(row["arm"] for row in rows) == dict.fromkeys(ARMS, 2 * 2 * 2)
    case = ("category", "prompt", "temperature", "seed")
    order = list(dict.fromkeys(tuple(row[key] for key in case) for row in rows))
    grouped = [[row for row in rows if tuple(row[key] for key in case) == one] for one in order]
    assert [row for group in grouped for row in group] == rows
    assert all([row["arm"] for row in group] == ARMS for group in grouped)
    assert {(row["seed"], row["round"]) for row in rows} == {("0", "1"), ("1", "2")}


def test_the_arms_have_the_settings_of_the_comparison(table: Path) -> None:
    found = {row["arm"]: row["setting"] for row in read(table)}
    assert found == {
        "ar": "",
        "sd": "gamma 4",
        "egag": "gamma 1 to 6, EMA 0.9",
        "nasd": "gamma 4, basic 3, filler 3",
        "prompt-lookup": "gamma 4",
        "lookahead 3,3,2": "",
        "lookahead-auto": "",
        "chain": "gamma 4, basic 3, filler 3, 3,3,2",
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
    decodings, rows = read(table), read(table.with_name("results_means.csv"))
    assert [row["arm"] for row in rows] == ARMS * 3 * 2
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
    prompt = load_sets([TASK_FILES["code"]], (), 1)[0].texts[0]
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
    assert len(rows) == len(METHODS) * 2 * 2
    assert len(scored) == len(set(scored)) == 3  # greedy, and two seeds
    assert max(float(row["ttft_ms"]) for row in rows) < 86400


def test_the_same_command_writes_the_same_bytes_but_for_times(model: Path, tmp_path: Path) -> None:
    """Lookahead auto chooses by what forwards cost, so only its texts repeat."""
    arms = ",".join(name for name in METHODS if name != "lookahead-auto")
    found = []
    for name in ("a.csv", "b.csv"):
        ran = ablation(model, tmp_path / name, "--categories", "code", "--arms", arms)
        assert ran.code == 0, ran.err
        rows = read(tmp_path / name)
        found.append([{k: v for k, v in row.items() if k not in TIMES} for row in rows])
    assert found[0] == found[1]


@pytest.mark.deep
def test_a_killed_run_keeps_its_turns_and_goes_on(model: Path, tmp_path: Path) -> None:
    path, at = tmp_path / "results.csv", 3
    journal = path.with_suffix(".jsonl")
    args = command(model, path, "--categories", "dialogue,code")
    started = subprocess.Popen(
        [*holding("trtla.extras.bench.kept:JournalledTurns.put", 40), *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    while started.poll() is None:
        if journal.exists() and journal.read_text().count("\n") >= at:
            started.send_signal(signal.SIGKILL)
            break
        time.sleep(0.005)
    assert started.wait() == -signal.SIGKILL
    kept = journal.read_text()
    turns = kept.count("\n")
    assert at <= turns < 8
    ran = trtla(*args)
    assert ran.code == 0, ran.err
    assert journal.read_text().startswith(kept[: kept.rfind("\n") + 1])
    assert f"note: {8 * turns} of 64 decodings are kept from before" in ran.err
    rows = read(path)
    assert len(rows) == 64
    assert all(row["equal_texts"] == "1" for row in rows)
    before, lines = measured(path), journal.read_bytes()
    ran = trtla(*args)
    assert ran.code == 0
    assert "note: 64 of 64 decodings are kept from before" in ran.err
    assert (measured(path), journal.read_bytes()) == (before, lines)  # nothing was left to do


def test_a_half_written_turn_is_measured_again(table: Path, model: Path, tmp_path: Path) -> None:
    path, journal = tmp_path / "results.csv", tmp_path / "results.jsonl"
    lines = table.with_suffix(".jsonl").read_text().splitlines()
    turns = [line for line in lines if '"outputs"' in line]
    assert len(turns) == 8
    journal.write_text("\n".join(turns)[:-40])
    path.write_text(table.read_text())
    ran = ablation(model, path, "--categories", "translation,code")
    assert ran.code == 0, ran.err
    assert "note: 56 of 64 decodings are kept from before" in ran.err
    assert measured(path)[:-8] == measured(table)[:-8]
    journal.unlink()
    refused(ablation(model, path), 2, "results.jsonl", "is not there", "--output")


def test_it_says_beforehand_how_much_it_decodes_and_keeps_its_default_small(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtla.extras.bench.rounds._LONG_S", 0.0)
    base = ("bench", "--ablation", "--engine-dir", model, "--threads", "1")
    args = (*base, "--max-output-len", "1", "--arms", "ar", "--output", tmp_path / "results.csv")
    ran = trtla(*args)
    assert ran.code == 0, ran.err
    said = "note: 16 decodings of up to 1 token: 1 arm, 8 prompts, 2 processors, 1 repeat\n"
    assert ran.err.startswith(said)
    assert " in all, by the first 1 decoding\n" in ran.err
    assert len(ran.err.splitlines()) < 10  # not a line a decoding
    whole = trtla(*args, "--full", "--processor", "greedy")
    assert whole.code == 0, whole.err
    said = "note: 210 decodings of up to 1 token: 1 arm, 70 prompts, 1 processor, 3 repeats\n"
    assert whole.err.startswith(said)
    assert "note: 8 of 210 decodings are kept from before" in whole.err
    less = trtla(*args, "--full", "--processor", "greedy", "--repeats", "1")
    assert less.err.startswith("note: 70 decodings ")
    refused(trtla("bench", "--engine-dir", model, "--full"), 2, "--full is read by --ablation")


def test_a_prompt_of_ones_own_and_grids(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    ran = ablation(
        model, path, "-p", "Once upon a time", "--repeats", "1", "--processor", "topk:1:5",
        "--arms", "sd,egag,nasd", "--grid-gamma", "2,20", "--grid-gamma-max", "4,6",
        "--grid-ema", "0,0.9", "--grid-ngram-order", "2,3", "--grid-top-k-filler", "1,3",
        "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    rows = read(path)
    counts = Counter(row["arm"] for row in rows)
    assert counts == {"ar": 1, "sd": 2, "egag": 2 * 2, "nasd": 2 * 2 * 2}
    assert len({(row["arm"], row["setting"]) for row in rows}) == len(rows)
    assert {(row["category"], row["top_k"]) for row in rows} == {("prompt", "5")}
    assert all(row["equal_texts"] == "1" for row in rows)
    assert ran.json["environment"]["command"].split()[0] == "trtla"
    assert ran.json["environment"]["torch"]
    found = next(one for one in ran.json["rows"] if one["arm"] == "nasd")
    assert (found["setting"], found["rounds"]) == ("gamma 2, basic 2, filler 1", 1)
    assert (found["equal_texts"], found["temperature"]) == (1, 1)
    for one in ran.json["rows"]:
        assert sum(one["accepted_per_pos"]) == pytest.approx(one["accepted"] / one["steps"])
        assert one["accepted_per_pos"] == sorted(one["accepted_per_pos"], reverse=True)


def test_the_sources_of_auto_are_switched_off_one_by_one(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    args = ("--sources", "--grid-nodes", "2,5", "--categories", "code", "--processor", "greedy")
    ran = ablation(model, path, *args, "--prompts-per-task", "2", "--json")
    assert ran.code == 0, ran.err
    assert all(row["equal_texts"] == "1" for row in read(path))
    rows = {(one["arm"], one["setting"]): one for one in ran.json["rows"]}
    without = [f"auto-without-{name}" for name in ("context", "requests", "recycling", "window")]
    named = [(name, None) for name in ("ar", "lookahead-auto", *without)]
    assert list(rows) == [*named, ("auto-nodes", "nodes 2"), ("auto-nodes", "nodes 5")]
    assert rows["ar", None]["sources"] is None
    assert rows["ar", None]["fed_per_step"] == 1
    for name in ("context", "requests", "window"):
        assert name not in rows[f"auto-without-{name}", None]["sources"]
    left = set(rows["auto-without-recycling", None]["sources"])
    assert not {"recycling", "agreement"} & left
    few, many = (rows["auto-nodes", f"nodes {count}"] for count in (2, 5))
    assert 1 < few["fed_per_step"] <= 3 < many["fed_per_step"] <= 6
    steps: dict[tuple[str, ...], list[str]] = {}
    for row in read(path):
        if row["arm"] == "auto-nodes":
            steps.setdefault((row["setting"], row["prompt"]), []).append(row["steps"])
    assert all(first == second for first, second in steps.values())  # a repeat learns nothing
    again = ablation(model, path, *args, "--prompts-per-task", "2")
    assert "note: 32 of 32 decodings are kept from before" in again.err
    assert "| auto-nodes (nodes 5) " in again.out
    other = ablation(model, tmp_path / "others.csv", *args[:1], "--arms", "ar")
    refused(other, 2, "--sources and --arms exclude each other")


def test_what_a_list_names_twice_counts_once_and_rows_of_before_keep_their_counts(
    model: Path, tmp_path: Path
) -> None:
    args = ("-p", "a", "--arms", "nasd", "--processor", "greedy,greedy", "--json")
    path = tmp_path / "results.csv"
    first, second = (ablation(model, path, *args, "--grid-gamma", "4,4") for _ in range(2))
    assert first.code == second.code == 0, first.err
    assert len(read(path)) == 2 * 2
    assert [one["texts"] for one in first.json["rows"]] == [2, 2]
    rows = [
        [{**row, "share_of_bandwidth": 0} for row in one.json["rows"]] for one in (first, second)
    ]
    assert rows[0] == rows[1]


def test_bad_settings_are_refused_before_a_model_is_loaded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_llama: Path
) -> None:
    monkeypatch.setattr("trtla.llm.llm.LLM", lambda *_, **__: pytest.fail("a model is loaded"))
    path = tmp_path / "results.csv"
    for args, parts in (
        (("--arms", "medusa"), ("medusa", "prompt-lookup")),
        (("--processor", "beam"), ("beam", "nucleus")),
        (("--processor", "nucleus:0.8:1.5"), ("top_p", "1.5")),
        (("--grid-gamma", "0"), ("0",)),
        (("--grid-ngram-order", "1"), ("ngram_order is 1",)),
        (("--grid-ngram-kind", "both"), ("both", "basic")),
        (("--grid-ema", "1"), ("ema is 1",)),
        (("--repeats", "0"), ("0",)),
        (("--categories", "poems"), ("poems", "dialogue")),
        (("--processor", "greedy", "--top-p", "0.9"), ("--ablation does not read --top-p",)),
        (("--batch-size", "4"), ("--ablation does not read --batch-size",)),
        (
            ("--batch-size", "4", "--compare", "hf"),
            ("--ablation does not read --compare, --batch-size", "omit them"),
        ),
        (("--compare", "hf"), ("--ablation does not read --compare",)),
        (("--lookahead-cells", "drawn"), ("--ablation does not read --lookahead-cells",)),
        (("--threads", "1,2"), ("--threads has 2 numbers",)),
        (("-p", ""), ("empty",)),
        (("-p", "x", "--categories", "code"), ("exclude",)),
        (("--draft-model", tiny_llama), ("in the draft model", "same tokenizer")),
        (("--draft-model", tmp_path / "none"), ("none",)),
        (("--output", tmp_path / "results.txt"), (".csv", ".json")),
        (("-p", "a", "--prompts", "code"), ("--input-text and --prompts exclude each other",)),
        (("--output", tmp_path / "no" / "results.csv"), ("does not exist",)),
        (("--output", "/proc/results.csv"), ("/proc/results.csv cannot be written",)),
    ):
        refused(ablation(model, path, *args), 2, *parts)
    alone = trtla("bench", "--engine-dir", model, "--repeats", "2")
    refused(alone, 2, "--repeats is read by --ablation alone")
    prompt = trtla("bench", "--engine-dir", model, "-p", "a")
    refused(prompt, 2, "--input-text is read by --ablation alone", "or give a file to --prompts")
    path.write_text("a,b\n1,2\n")
    refused(ablation(model, path), 2, "not an ablation's table of this version", "--output")
    assert path.read_text() == "a,b\n1,2\n"


def test_prompts_of_ones_own_and_a_document_where_it_is_told(model: Path, tmp_path: Path) -> None:
    prompts, output = tmp_path / "own.jsonl", tmp_path / "found.json"
    lines = [{"category": name, "text": name * 3} for name in ("first", "second", "second")]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    args = ("--prompts", prompts, "--arms", "nasd", "-n", "4", "-o", output)
    ran = trtla("bench", model, "--ablation", *args, "--processor", "greedy", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(output.read_text()) == ran.json
    rows = read(tmp_path / "found.csv")
    found = {(row["category"], row["prompt"]) for row in rows}
    assert found == {("first", "0"), ("second", "0"), ("second", "1")}
    assert {row["arm"] for row in rows} == {"ar", "nasd"}
    assert (tmp_path / "found_means.csv").exists()
    output.write_text('{"mine": 1}')
    refused(trtla("bench", model, "--ablation", *args), 2, "found.json is another file", "--output")
