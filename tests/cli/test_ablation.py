"""`trtla bench --ablation` on the tiny random model: exact columns, resuming, means, refusals."""

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
from statistics import mean, stdev
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.command import ROOT, Ran, holding, refused, trtla
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.bench.ablation_arms import METHODS, load_tasks
from trtla.bench.tables import COLUMNS, FIGURES
from trtla.data.prompt_sets import Ids

HEADER = [
    "run_id", "method", "gamma_policy", "gamma", "gamma_min", "gamma_max", "ema_beta",
    "ngram_kind", "ngram_n", "top_k_filler", "window", "ngram", "guesses", "model", "drafter",
    "backend", "device", "dtype", "use_cache", "processor", "temperature", "top_k", "top_p",
    "seed", "repeat", "task", "prompt_id", "prompt_tokens", "new_tokens", "steps",
    "drafter_forwards", "drafted", "accepted", "acceptance_rate", "tokens_per_step", "mean_gamma",
    "mean_h_norm", "time_s", "ttft_ms", "tokens_per_s", "ms_per_token", "speedup_vs_ar",
    "peak_mem_mib", "finish_reason", "output_sha256", "same_as_ar", "rouge_l", "perplexity",
]  # fmt: skip
"""Written out once more: files that exist must stay readable."""
TIMES = ("time_s", "ttft_ms", "tokens_per_s", "ms_per_token", "speedup_vs_ar", "peak_mem_mib")
"""What differs between two runs of one command."""


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


@pytest.fixture(scope="module")
def table(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prompts, one of them with a reference."""
    path = tmp_path_factory.mktemp("ablation") / "results.csv"
    ran = ablation(model, path, "--categories", "translation,code")
    assert ran.code == 0, ran.err
    assert "ablation: 64 of 64 decodings, code 0, nucleus, repeat 1, chain: " in ran.err
    assert ran.out.count("| chain ") == 2  # a line a processor
    return path


def test_the_file_has_one_header_with_exactly_the_columns(table: Path) -> None:
    assert list(COLUMNS) == HEADER
    lines = table.read_text().splitlines()
    assert lines[0] == ",".join(HEADER)
    assert sum("run_id" in line for line in lines) == 1
    assert all(len(row) == len(HEADER) for row in csv.reader(lines))


def test_each_arm_has_a_row_for_each_prompt_processor_and_seed(table: Path) -> None:
    rows = read(table)
    assert Counter(row["method"] for row in rows) == dict.fromkeys(METHODS, 2 * 2 * 2)
    assert len({row["run_id"] for row in rows}) == len(rows)
    case = ("task", "prompt_id", "processor", "seed")
    order = list(dict.fromkeys(tuple(row[key] for key in case) for row in rows))
    grouped = [[row for row in rows if tuple(row[key] for key in case) == one] for one in order]
    assert [row for group in grouped for row in group] == rows
    assert all([row["method"] for row in group] == list(METHODS) for group in grouped)
    assert {(row["seed"], row["repeat"]) for row in rows} == {("0", "0"), ("1", "1")}


def test_the_arms_have_the_settings_of_the_comparison(table: Path) -> None:
    first = {row["method"]: row for row in reversed(read(table))}
    names = ("gamma_policy", "gamma", "gamma_min", "gamma_max", "ema_beta", "ngram_kind", "ngram_n")
    found = {m: [row[n] for n in (*names, "top_k_filler")] for m, row in first.items()}
    assert found["ar"] == [""] * 8
    assert found["sd"] == ["fixed", "4", "", "", "", "", "", ""]
    assert found["egag"] == ["egag", "", "1", "6", "0.9", "", "", ""]
    assert found["nasd"] == ["fixed", "4", "", "", "", "basic", "3", "3"]
    triple = ("window", "ngram", "guesses")
    assert [first["lookahead"][n] for n in triple] == ["3", "3", "2"]
    nucleus = next(row for row in read(table) if row["processor"] == "nucleus")
    assert [nucleus[n] for n in ("temperature", "top_k", "top_p")] == ["0.8", "", "0.9"]


def test_rows_agree_with_themselves_and_with_plain_decoding(table: Path) -> None:
    for row in read(table):
        number = {n: float(row[n]) for n in ("new_tokens", "steps", "drafted", "accepted")}
        assert row["same_as_ar"] == "true", row
        # The last step may end within its draft, without a token of the target's own.
        own = number["steps"] + number["accepted"] + 1 - number["new_tokens"]
        assert own == 0 or (own == 1 and row["method"] in ("lookahead", "lookahead-auto", "chain"))
        assert number["new_tokens"] == 8
        assert number["accepted"] <= number["drafted"]
        assert (row["rouge_l"] == "") == (row["task"] == "code")
        assert (row["mean_h_norm"] != "") == (row["method"] == "egag")
        if row["method"] == "ar":
            assert (row["drafted"], row["acceptance_rate"]) == ("0", "")
            assert row["speedup_vs_ar"] == "1"
        if row["method"] in ("sd", "egag"):  # the draft model is the model itself
            assert row["acceptance_rate"] == "1"
            assert row["drafter_forwards"] == row["drafted"]
        assert 1000 / float(row["tokens_per_s"]) == pytest.approx(float(row["ms_per_token"]), 1e-4)


def test_perplexity_is_the_targets_own_of_the_text(table: Path, model: Path) -> None:
    """Against transformers; a text has one, whoever drafted and whatever drew it."""
    rows = read(table)
    found: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        found.setdefault((row["task"], row["output_sha256"]), set()).add(row["perplexity"])
    assert all(len(one) == 1 for one in found.values())
    assert len({cell for one in found.values() for cell in one}) == len(found) > 2
    [prompt] = load_tasks(["code"], 1)
    with LLM(model, lookahead=LookaheadConfig(1, 1, 0)) as llm:
        llm.end_ids = frozenset()
        drawn = SamplingParams(8, temperature=0.8, top_p=0.9, seed=1)
        for sampling, name in ((SamplingParams(8), "greedy"), (drawn, "nucleus")):
            [done] = llm.generate(prompt.text, sampling)
            [cell] = {
                row["perplexity"] for row in rows
                if (row["task"], row["processor"], row["seed"]) == ("code", name, "1")
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
    monkeypatch.setattr("trtla.bench.arms.time", clock)

    monkeypatch.setattr(LLM, "log_probs", slow)
    path = tmp_path / "results.csv"
    ran = ablation(model, path, "--categories", "code", "--processor", "greedy,nucleus:2:0.9")
    assert ran.code == 0, ran.err
    rows = read(path)
    assert len(rows) == len(METHODS) * 2 * 2
    assert len(scored) == len(set(scored)) == 3  # greedy, and two seeds
    assert max(float(row["time_s"]) for row in rows) < 86400


def test_the_means_file_holds_mean_and_deviation_of_each_setting_and_task(table: Path) -> None:
    rows, found = read(table), read(table.with_name("results_means.csv"))
    assert len(found) == len(METHODS) * 2 * 2
    for line in found:
        own = [
            row for row in rows
            if all(row[n] == line[n] for n in ("method", "processor", "task"))
        ]  # fmt: skip
        assert int(line["rows"]) == len(own) == 2
        for figure in FIGURES:
            values = [{"true": 1.0, "false": 0.0}.get(r[figure]) or r[figure] for r in own]
            numbers = [float(value) for value in values if value != ""]
            if not numbers:
                assert (line[f"{figure}_mean"], line[f"{figure}_std"]) == ("", "")
                continue
            assert float(line[f"{figure}_mean"]) == pytest.approx(mean(numbers), rel=1e-4)
            if len(numbers) > 1:
                deviation = pytest.approx(stdev(numbers), rel=1e-3, abs=1e-4)
                assert float(line[f"{figure}_std"]) == deviation


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
def test_a_killed_run_keeps_its_rows_and_goes_on(model: Path, tmp_path: Path) -> None:
    path, at = tmp_path / "results.csv", 7
    args = command(model, path, "--categories", "dialogue,code")
    started = subprocess.Popen(
        [*holding("trtla.bench.ablation:_Rows.append", 40), *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    while started.poll() is None:
        if path.exists() and path.read_text().count("\n") > at:
            started.send_signal(signal.SIGKILL)
            break
        time.sleep(0.005)
    assert started.wait() == -signal.SIGKILL
    kept = path.read_text()
    kept = kept[: kept.rfind("\n") + 1]
    assert at <= kept.count("\n") - 1 < 64
    ran = trtla(*args)
    assert ran.code == 0, ran.err
    assert path.read_text().startswith(kept)
    rows = read(path)
    assert len(rows) == len({row["run_id"] for row in rows}) == 64
    assert all(row["same_as_ar"] == "true" for row in rows)
    assert f"note: {kept.count(chr(10)) - 1} of 64 rows are there already" in ran.err
    again = path.read_bytes()
    ran = trtla(*args)
    assert ran.code == 0
    assert "note: 64 of 64 rows are there already" in ran.err
    assert path.read_bytes() == again  # nothing was left to do


def test_a_half_written_line_is_measured_again(table: Path, model: Path, tmp_path: Path) -> None:
    path, text = tmp_path / "results.csv", table.read_text()
    kept = table.with_suffix(".jsonl").read_text()
    path.with_suffix(".jsonl").write_text(kept[:-40])
    path.write_text(text[:-40])
    ran = ablation(model, path, "--categories", "translation,code")
    assert ran.code == 0, ran.err
    assert "note: 63 of 64 rows are there already" in ran.err
    assert path.read_text().splitlines()[:-1] == text.splitlines()[:-1]
    assert len(read(path)) == 64
    path.with_suffix(".jsonl").unlink()
    ran = ablation(model, path, "--categories", "code")
    refused(ran, 2, "results.jsonl", "has none", "--output")


def test_it_says_beforehand_how_much_it_decodes_and_keeps_its_default_small(
    model: Path, tmp_path: Path
) -> None:
    base = ("bench", "--ablation", "--engine-dir", model, "--threads", "1")
    args = (*base, "--max-output-len", "1", "--arms", "ar", "--output", tmp_path / "results.csv")
    ran = trtla(*args)
    assert ran.code == 0, ran.err
    said = "note: 16 decodings of up to 1 token: 1 arm, 8 prompts, 2 processors, 1 repeat\n"
    assert ran.err.startswith(said)
    assert " in all, by the first 1 decoding\n" in ran.err
    assert "ablation: 16 of 16 decodings, code 1, nucleus, repeat 0, ar: " in ran.err
    assert len(ran.err.splitlines()) < 10  # not a line a decoding
    whole = trtla(*args, "--full", "--processor", "greedy")
    assert whole.code == 0, whole.err
    said = "note: 210 decodings of up to 1 token: 1 arm, 70 prompts, 1 processor, 3 repeats\n"
    assert whole.err.startswith(said)
    assert "note: 8 of 210 rows are there already" in whole.err
    assert "ablation: 210 of 210 decodings, " in whole.err
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
    counts = Counter(row["method"] for row in rows)
    assert counts == {"ar": 1, "sd": 2, "egag": 2 * 2, "nasd": 2 * 2 * 2}
    assert {(row["task"], row["processor"], row["top_k"]) for row in rows} == {
        ("prompt", "topk", "5")
    }
    assert all(row["same_as_ar"] == "true" for row in rows)
    assert ran.json["environment"]["command"].split()[0] == "trtla"
    assert ran.json["environment"]["torch"]
    found = next(one for one in ran.json["means"] if one["method"] == "nasd")
    assert (found["gamma"], found["rows"], found["same_as_ar_mean"]) == (2, 1, 1)
    assert (found["use_cache"], found["window"], found["temperature"]) == (True, None, 1)
    assert found["ngram_kind"] == "basic"
    for one in ran.json["means"]:
        share = one["accepted_mean"] / one["steps_mean"]
        assert sum(one["accepted_per_pos"]) == pytest.approx(share)
        assert one["accepted_per_pos"] == sorted(one["accepted_per_pos"], reverse=True)
    assert read(tmp_path / "results_means.csv")[0]["time_s_std"] == ""  # one repeat


def test_the_sources_of_auto_are_switched_off_one_by_one(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    args = ("--sources", "--grid-nodes", "2,5", "--categories", "code", "--processor", "greedy")
    ran = ablation(model, path, *args, "--prompts-per-task", "2", "--json")
    assert ran.code == 0, ran.err
    assert all(row["same_as_ar"] == "true" for row in read(path))
    means = {(one["method"], one["gamma"]): one for one in ran.json["means"]}
    without = [f"auto-without-{name}" for name in ("own", "others", "rows", "window")]
    named = [(name, None) for name in ("ar", "lookahead-auto", *without)]
    assert list(means) == [*named, ("auto-nodes", 2), ("auto-nodes", 5)]
    assert means["ar", None]["sources"] is None
    assert means["ar", None]["fed_per_step"] == 1
    for name in ("own", "others", "window"):
        assert name not in means[f"auto-without-{name}", None]["sources"]
    assert not {"rows", "both"} & set(means["auto-without-rows", None]["sources"])
    few, many = (means["auto-nodes", count] for count in (2, 5))
    assert 1 < few["fed_per_step"] <= 3 < many["fed_per_step"] <= 6
    steps: dict[tuple[str, ...], list[str]] = {}
    for row in read(path):
        if row["method"] == "auto-nodes":
            steps.setdefault((row["gamma"], row["prompt_id"]), []).append(row["steps"])
    assert all(first == second for first, second in steps.values())  # a repeat learns nothing
    again = ablation(model, path, *args, "--prompts-per-task", "2")
    assert "note: 32 of 32 rows are there already" in again.err
    assert "| auto-nodes          | nodes 5 |" in again.out
    other = ablation(model, tmp_path / "others.csv", *args[:1], "--arms", "ar")
    refused(other, 2, "--sources and --arms exclude each other")


def test_what_a_list_names_twice_counts_once_and_rows_of_before_keep_their_counts(
    model: Path, tmp_path: Path
) -> None:
    args = ("-p", "a", "--arms", "nasd", "--processor", "greedy,greedy", "--json")
    path = tmp_path / "results.csv"
    first, second = (ablation(model, path, "--dtype", "auto,float32", *args) for _ in range(2))
    assert first.code == second.code == 0, first.err
    assert len(read(path)) == 2 * 2
    assert [one["rows"] for one in first.json["means"]] == [2, 2]
    assert all(one["accepted_per_pos"] is not None for one in first.json["means"])
    assert first.json["means"] == second.json["means"]


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
    path.write_text("a,b\n1,2\n")
    refused(ablation(model, path), 2, "not an ablation's table", "--output")
    assert path.read_text() == "a,b\n1,2\n"


def test_prompts_of_ones_own_and_a_document_where_it_is_told(model: Path, tmp_path: Path) -> None:
    prompts, output = tmp_path / "own.jsonl", tmp_path / "found.json"
    lines = [{"category": name, "text": name * 3} for name in ("first", "second", "second")]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    args = ("--prompts", prompts, "--arms", "nasd", "-n", "4", "-o", output)
    ran = trtla("bench", model, "--ablation", *args, "--processor", "greedy", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(output.read_text()) == ran.json
    assert ran.json["output"] == str(tmp_path / "found.csv")
    rows = read(tmp_path / "found.csv")
    found = {(row["task"], row["prompt_id"]) for row in rows}
    assert found == {("first", "0"), ("second", "0"), ("second", "1")}
    assert {row["method"] for row in rows} == {"ar", "nasd"}
    assert (tmp_path / "found_means.csv").exists()
    output.write_text('{"mine": 1}')
    refused(trtla("bench", model, "--ablation", *args), 2, "found.json is another file", "--output")
