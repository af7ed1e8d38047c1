"""`trtla bench` on a tiny random model: JSON, CSV and Markdown, equal texts, every refusal."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.command import Ran, refused, trtla
from trtla.cli.app import execute
from trtla.console import Console
from trtla.files import read_json, write_json
from trtla.results.rows import Row

FIGURES = {
    "acceptance_rate", "accepted", "accepted_per_pos", "arm", "compute_type", "distinct_4grams",
    "draft_forwards", "drafted", "efficiency", "equal_texts", "fed_per_step",
    "first_divergence", "head_forwards", "head_s", "head_share", "host_ms_per_step",
    "mean_entropy", "mean_gamma", "ms_per_token",
    "output_tokens", "peak_memory_mb", "read_gb_per_s", "rounds", "setting",
    "share_of_bandwidth", "sources", "speedup_vs_ar", "speedup_vs_ar_max", "speedup_vs_ar_min",
    "steps", "texts", "time_s", "tokens_per_s", "tokens_per_s_max", "tokens_per_s_min",
    "tokens_per_step", "ttft_ms", "weight_type",
}  # fmt: skip
AXES = {
    "device", "dtype", "threads", "batch_size", "prompt_len", "temperature", "top_k", "top_p",
    "category", "executor",
}  # fmt: skip


def bench(model: Path, *args: str | Path) -> Ran:
    small = ("--num-prompts", "2", "--rounds", "2", "--max-output-len", "8", "--threads", "1")
    return trtla("bench", "--engine-dir", model, "--prompts", "code", *small, *args)


def test_penalties_are_measured_and_peers_have_none(engine: Path) -> None:
    own = ("--repetition-penalty", "1.3", "--logit-bias", "5:2", "--temperature", "0")
    ran = bench(engine, *own, "--json")
    assert ran.code == 0, ran.err
    settings = ran.json["settings"]
    assert (settings["repetition_penalty"], settings["logit_bias"]) == (1.3, [[5, 2.0]])
    assert {row["equal_texts"] for row in ran.json["rows"]} == {2}
    refused(bench(engine, *own, "--compare", "hf", "--hf-model-dir", engine), 2,
            "--repetition-penalty and --compare exclude each other", "omit one")  # fmt: skip


def test_the_json_document(engine: Path, model: Path) -> None:
    ran = bench(
        engine, "--lookahead", "4,3,4", "auto", "--json", "--hf-model-dir", model,
        "--compare", "hf,hf-prompt-lookup,hf-assisted", "--assistant-dir", model,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    found = ran.json
    assert set(found) == {"schema_version", "environment", "settings", "cells", "rows"}
    assert found["environment"]["torch"]
    [executor] = found["settings"]["executors"]
    assert executor.startswith("cpu, float32")
    assert all(set(row) == FIGURES | AXES for row in found["rows"])
    arms = [
        "ar", "lookahead 4,3,4", "lookahead auto", "hf", "hf-prompt-lookup", "hf-assisted"
    ]  # fmt: skip
    assert [row["arm"] for row in found["rows"]] == arms * 2
    assert [cell["temperature"] for cell in found["cells"]] == [0.0, 0.5]
    for cell in found["cells"]:
        assert cell["order"] == arms * 2 * 2  # prompts, rounds
        assert all(len(samples) == 2 for samples in cell["tokens_per_s"].values())
    for row in found["rows"]:
        assert row["output_tokens"] == 16  # end tokens are ignored: every arm writes as many
        if row["temperature"] == 0.0 or not row["arm"].startswith("hf"):
            assert (row["texts"], row["equal_texts"]) == (2, 2), row
        else:
            assert row["equal_texts"] is None
        assert row["tokens_per_s_min"] <= row["tokens_per_s"] <= row["tokens_per_s_max"]
        if row["arm"].startswith("hf"):
            assert row["accepted_per_pos"] is None
        else:  # the last step may end within its draft
            share = row["tokens_per_step"] - 1
            per_step = sum(row["accepted_per_pos"])
            assert share - 1e-9 <= per_step <= share + 1
    lookup = found["rows"][4]
    assert lookup["setting"].startswith("prompt_lookup_num_tokens=")
    assert "code, temperature 0.5, batch 1, round 2 of 2: ar " in ran.err


def test_sources_of_auto_are_in_every_form(engine: Path) -> None:
    auto = ("--lookahead", "auto", "--lookahead-nodes", "4", "--temperature", "0")
    plain, row = bench(engine, *auto, "--json").json["rows"]
    assert plain["sources"] is None
    sums = {name: (sum(one["fed"]), sum(one["accepted"])) for name, one in row["sources"].items()}
    assert all(fed >= accepted for fed, accepted in sums.values())
    assert sum(fed for fed, _ in sums.values()) > 0
    for name, (_, accepted) in sums.items():
        one = row["sources"][name]
        ratio = one["expected"] / accepted if accepted else None
        assert one["calibration"] == (ratio if ratio is None else pytest.approx(ratio))
    [_, line] = csv.DictReader(io.StringIO(bench(engine, *auto, "--output-format", "csv").out))
    assert set(json.loads(line["sources"])) == set(sums)
    table = (
        bench(engine, *auto, "--wide")
        .out.partition("| sources of lookahead auto |")[2]
        .splitlines()
    )
    assert [line.split()[1] for line in table[2:]] == [*sums, "all"]


def test_csv_has_a_line_for_each_arm_and_cell(engine: Path) -> None:
    ran = bench(
        engine,
        "--batch-size",
        "1,3",
        "--prompt-len",
        "16,40",
        "--temperature",
        "0",
        "--output-format",
        "csv",
    )
    assert ran.code == 0, ran.err
    lines = list(csv.DictReader(io.StringIO(ran.out)))
    about = {"cpu", "cores", "torch", "transformers", "trtla", "commit", "model"}
    assert about | {"arm", "device", "category"} <= set(lines[0]) <= about | {*Row.model_fields}
    shapes = [(line["batch_size"], line["prompt_len"], line["arm"]) for line in lines]
    arms = ("ar", "lookahead auto")
    assert shapes == [(b, n, a) for b in ("1", "3") for n in ("16", "40") for a in arms]
    assert all(float(line["tokens_per_s"]) > 0 for line in lines)
    assert {line["equal_texts"] for line in lines} == {"2", "3"}  # batches of 3 are filled up


def test_markdown_tells_the_circumstances(model: Path) -> None:
    ran = bench(
        model, "--lookahead", "2,3,2", "--temperature", "0", "--batch-size", "2",
        "--compare", "hf", "--dtype", "float32,bfloat16", "--wide",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "- machine: " in ran.out
    assert "read bandwidth" in ran.out
    for dtype in ("float32", "bfloat16"):
        assert re.search(rf"\((torch on )?cpu, {dtype}[^()]*, 1 thread\)", ran.out)
    assert ran.out.count("| lookahead 2,3,2 |") == 2
    assert ran.out.count("| hf ") == 2
    for dtype in ("float32", "bfloat16"):  # given, it is the peers' type too
        assert re.search(rf"\| hf +\|.*\| {dtype} +\|", ran.out)


def test_processors_are_cells_beside_one_another(engine: Path) -> None:
    args = ("--processor", "greedy,nucleus:2:0.4,topk:1.5:5", "--lookahead", "2,2,1")
    ran = bench(engine, *args, "--json")
    assert ran.code == 0, ran.err
    filters = [(0.0, 0, 1.0), (2.0, 0, 0.4), (1.5, 5, 1.0)]
    names = ("temperature", "top_k", "top_p")
    assert [tuple(row[name] for name in names) for row in ran.json["rows"][::2]] == filters
    assert [tuple(cell[name] for name in names) for cell in ran.json["cells"]] == filters
    assert all(row["equal_texts"] == 2 for row in ran.json["rows"])
    assert "code, temperature 2, top-p 0.4, batch 1, round 1 of 2: ar " in ran.err
    named = bench(engine, "--processor", "topk:1.5:5", "--rounds", "1")
    assert named.code == 0, named.err
    assert "**code, temperature 1.5, top-k 5, batch 1**" in named.out


def test_processors_write_what_their_filters_write(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtla.measuring.arms import EngineArm

    decode, drawn = EngineArm.decode, []

    def spied(self, prompts, sampling):
        run = decode(self, prompts, sampling)
        drawn.append((self.name, run.outputs))
        return run

    monkeypatch.setattr(EngineArm, "decode", spied)
    spelled = ("--temperature", "2", "--top-p", "0.4", "--top-k", "30")
    for args in (("--processor", "topknucleus:2:30:0.4"), spelled, ("--temperature", "2")):
        assert bench(engine, *args).code == 0
    third = len(drawn) // 3
    assert drawn[:third] == drawn[third : 2 * third] != drawn[2 * third :]


def test_lists_in_a_preset(engine: Path, tmp_path: Path) -> None:
    preset = tmp_path / "bench.yaml"
    preset.write_text(
        "batch_size: [1, 2]\ntemperature: 0.5\nlookahead: [[4, 3, 4], [2, 2, 1]]\n"
        "ignore_eos: false\noutput_format: json\n"
    )
    ran = bench(engine, "--config", preset)
    assert ran.code == 0, ran.err
    arms = ["ar", "lookahead 4,3,4", "lookahead 2,2,1"]
    assert [(row["batch_size"], row["arm"]) for row in ran.json["rows"]] == [
        (size, arm) for size in (1, 2) for arm in arms
    ]
    assert not ran.json["settings"]["ignore_eos"]


def test_long_prompts_are_cut_and_told(engine: Path) -> None:
    ran = bench(engine, "--temperature", "0", "--rounds", "1")
    assert ran.code == 0, ran.err
    assert "note: 2 prompts of code are cut to 128 tokens" in ran.err


def test_peers_that_take_one_prompt_are_left_out_of_batches(model: Path) -> None:
    ran = bench(
        model, "--compare", "hf-prompt-lookup", "--batch-size", "1,2", "--temperature", "0",
        "--lookahead", "2,2,1", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "note: hf-prompt-lookup does not take batches of 2" in ran.err
    arms = [(row["batch_size"], row["arm"]) for row in ran.json["rows"]]
    assert (1, "hf-prompt-lookup") in arms
    assert (2, "hf-prompt-lookup") not in arms


def test_bad_settings(engine: Path, model: Path, tmp_path: Path) -> None:
    refused(bench(engine, "--lookahead", "7,7,7"), 2, "--lookahead", "7,7,7", "4,3,4")
    refused(bench(engine, "--batch-size", "1,5"), 2, "batch size 5", "above the 4")
    refused(bench(engine, "--compare", "vllm"), 2, "vllm", "hf-prompt-lookup")
    refused(bench(engine, "--compare", "hf"), 2, "--hf-model-dir")
    refused(bench(model, "--compare", "hf-assisted"), 2, "--assistant-dir")
    refused(bench(model, "--compare", "hf-prompt-lookup", "--batch-size", "4"), 2, "--batch-size")
    refused(bench(engine, "--prompts", "poems"), 2, "poems", "summarization")
    refused(bench(engine, "--categories", "math"), 2, "math", "code")
    refused(bench(engine, "--dtype", "int8"), 2, "int8", "bfloat16")
    refused(bench(engine, "--temperature", "0,-1"), 2, "-1")
    refused(bench(engine, "--processor", "beam"), 2, "beam", "nucleus")
    refused(bench(engine, "--processor", "greedy,nucleus:1:2"), 2, "nucleus:1:2", "top_p is 2")
    both = ("--processor", "greedy", "--temperature", "0")
    refused(bench(engine, *both), 2, "--processor and --temperature exclude each other")
    refused(bench(engine, "--prompt-len", "200"), 2, "--prompt-len 200", "128")
    refused(bench(engine, "--max-output-len", "256"), 2, "256")
    refused(bench(engine, "--batch-size", "1,,2"), 2, "1,,2")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    refused(bench(engine, "--prompts", str(empty)), 2, "holds no prompts")
    refused(bench(tmp_path), 2, "config.json")


def test_llama_cpp_is_refused_before_a_model_is_loaded(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtla.extras.bench import sweep

    monkeypatch.setattr(sweep, "run_sweep", lambda *_: pytest.fail("a model is loaded"))
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    hint = "pip install 'trtla[bench]'"
    for peer in ("llama.cpp", "llama.cpp-prompt-lookup"):
        refused(bench(engine, "--compare", peer), 1, peer, '"llama-cpp-python"', hint)
    module = ModuleType("llama_cpp")
    module.__spec__ = ModuleSpec("llama_cpp", None)
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    refused(bench(engine, "--compare", peer), 2, "runs GGUF files", "--hf-model-dir MODEL.gguf")


def test_rows_of_texts_that_end_at_once_say_so(tiny_llama: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    tokens = read_json(model / "config.json")["vocab_size"]
    write_json(model / "generation_config.json", {"eos_token_id": list(range(tokens))})
    args = ("--lookahead", "2,2,1", "--temperature", "0", "--respect-eos")
    ran = bench(model, *args)
    assert "ar: texts of 1 token say nothing about decoding." in ran.out
    assert "lookahead 2,2,1: texts of 1 token" in ran.out
    assert "note: code, ar: texts of 1 token" in bench(model, *args, "--output-format", "csv").err
    assert "say nothing" not in bench(model, *args[:-1]).out
    ran = bench(model, "--ablation", "--respect-eos", "--output", tmp_path / "a.csv")
    assert "prompt-lookup (gamma 4): texts of 1 token say nothing" in ran.out


def test_the_shipped_draft_model_is_left_out_where_it_cannot_draft(
    engine: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.txt").write_text("ab\n")
    small = ("--prompts", tmp_path / "p.txt", "--max-output-len", "4", "--processor", "greedy")
    ran = trtla(
        "bench", "--ablation", "--engine-dir", engine, *small, "--output", tmp_path / "a.csv",
        "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "sd, egag, chain need a --draft-model of this vocabulary, and are skipped" in ran.err
    arms = [row["arm"] for row in ran.json["rows"]]
    assert arms == ["ar", "nasd", "prompt-lookup", "lookahead 4,3,4", "lookahead-auto"]


def test_an_interrupt_prints_the_rounds_that_were_whole(
    engine: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "p.txt").write_text("ab\n")
    note = Console.note

    def interrupted(console: Console, text: str) -> None:
        note(console, text)
        if "round 2 of 5" in text:
            raise KeyboardInterrupt

    asked = ["bench", str(engine), "--prompts", str(tmp_path / "p.txt"), "-n", "4", "--rounds", "5"]
    monkeypatch.setattr(Console, "note", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execute([*asked, "--temperature", "0", "--json"])
    out, err = capsys.readouterr()
    assert "note: interrupted; this is what was measured" in err
    assert {row["rounds"] for row in json.loads(out)["rows"]} == {2}
