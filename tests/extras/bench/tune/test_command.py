"""`trtla tune` on a tiny random model: document, files, resuming, presets, every refusal."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.support.command import ROOT, refused, trtla
from trtla.extras.bench.tune import clock
from trtla.extras.bench.tune.documents import Tune
from trtla.extras.bench.tune.output import advice, write_preset
from trtla.results.rows import Row

FAST = ("--budget", "10s", "--rounds", "1", "--max-output-len", "16", "--num-prompts", "1")
"""Of a clock that goes on by 2 ms whenever it is looked at: enough for all that is searched."""


@pytest.fixture(scope="module", autouse=True)
def _ticking() -> Iterator[None]:
    times = count(0.0, 0.002)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda: next(times))
        yield


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two categories, and a line that names none."""
    path = tmp_path_factory.mktemp("prompts") / "mine.jsonl"
    lines = [
        {"category": "letters", "text": "abcabcabcabc abcabc"},
        {"text": "no category here, none at all"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def tuned(engine: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory):
    """One tuning with everything it writes, and its arguments."""
    folder = tmp_path_factory.mktemp("tuned")
    args = (
        "tune", "--engine-dir", engine, "--prompts", prompts, "--batch-size", "1,2", *FAST,
        "--output-dir", folder / "out", "--json",
    )  # fmt: skip
    ran = trtla(*args, "--write", folder / "mine.yaml")
    assert ran.code == 0, ran
    return ran, folder, args


def test_the_document_has_what_report_reads(tuned):
    ran, folder, _ = tuned
    found = ran.json
    assert found == json.loads((folder / "out" / "tune.json").read_text())
    assert (found["schema_version"], found["command"]) == (1, "tune")
    assert found["argv"].split()[0] == "trtla"
    assert {"cpu", "cores", "torch", "commit"} <= set(found["environment"])
    assert found["cost"]["source"] == "executor"
    assert [row["sequences"] for row in found["cost"]["rows"]] == [1, 2]
    assert found["cost"]["knee"] >= 1
    assert all("predicted_speedup" not in row for row in found["rows"])
    assert {row["category"] for row in found["rows"]} == {"letters", "prompts", "all"}
    assert {row["batch_size"] for row in found["rows"]} <= {1, 2}
    arms = {row["arm"] for row in found["rows"]}
    assert arms >= {"ar", "lookahead auto"}
    triples = [one for one in map(triple_of, found["rows"]) if one]
    assert all(w <= 4 and n <= 3 and g <= 4 for w, n, g in triples)  # the engine's, one by one
    for row in found["rows"]:
        assert row["equal_texts"] == row["texts"]
        assert row["arm"] != "ar" or row["speedup_vs_ar"] == 1.0


def triple_of(row):
    return Row.model_validate(row).triple


def test_the_recommendation_is_the_fastest_that_was_measured_or_plain(tuned):
    found = tuned[0].json
    chosen = found["recommendation"]
    whole = [row for row in found["rows"] if (row["category"], row["batch_size"]) == ("all", 1)]
    real = {
        triple_of(row): row["speedup_vs_ar"] for row in whole
        if triple_of(row) and (row["tokens_per_step"] > 1 or row["arm"] == "ar")
    }  # fmt: skip
    fastest = max(real, key=lambda triple: real[triple])
    expected = fastest if real[fastest] >= 1.02 else (1, 1, 0)
    assert tuple(chosen["lookahead"]) == expected
    assert chosen["measured_speedup"] == real[expected]
    assert chosen["predicted_speedup"] is None
    assert [row["batch_size"] for row in chosen["by_batch_size"]] == [1, 2]
    assert [row["category"] for row in chosen["by_category"]] == ["letters", "prompts"]


def test_report_reads_the_document(tuned, tmp_path):
    ran = trtla("report", tuned[1] / "out" / "tune.json", "-o", tmp_path / "report.html")
    assert ran.code == 0, ran
    assert (tmp_path / "report.html").stat().st_size > 1000


def test_a_preset_is_written_only_of_what_was_measured_ahead(tuned):
    ran, folder, _ = tuned
    chosen, path = ran.json["recommendation"], folder / "mine.yaml"
    assert path.exists() == (chosen["keep_auto"] or chosen["lookahead"] != [1, 1, 0])
    assert ("nothing was measured ahead of plain decoding" in ran.err) != path.exists()


def test_where_auto_was_faster_headline_and_preset_keep_it(tuned, model, tmp_path):
    found = with_choice(
        tuned, lookahead=(1, 2, 1), measured_speedup=1.21, auto_speedup=1.24, keep_auto=True
    )
    assert advice(found, found.recommendation, planned=False)[:2] == [
        "Keep auto, the default: 1.24x measured over plain decoding (batch size 1).",
        "Best fixed triple: 1,2,1, 1.21x measured.",
    ]
    path = tmp_path / "mine.yaml"
    assert write_preset(found, path)
    text = path.read_text()
    assert "\nlookahead: auto\n" in text
    assert "\n# lookahead: [1, 2, 1]\n" in text
    ran = trtla("run", "--engine-dir", model, "--config", path, "--input-text", "ab")
    assert ran.code == 0, ran
    plain = with_choice(found, lookahead=(1, 1, 0), measured_speedup=1.0)
    lines = advice(plain, plain.recommendation, planned=False)
    assert lines[1] == "No fixed triple beats plain decoding here."
    assert write_preset(plain, path)
    assert "[" not in path.read_text()


def test_a_triple_that_beats_auto_says_so(tuned):
    found = with_choice(
        tuned, lookahead=(2, 3, 2), measured_speedup=1.5, auto_speedup=1.2, keep_auto=False
    )
    first, second, *_ = advice(found, found.recommendation, planned=False)
    assert first.startswith("window=2 ngram=3 verification=2")
    assert second == "auto, the default: 1.20x measured."


@pytest.mark.parametrize(("triple", "measured"), [((1, 1, 0), 1.0), ((2, 3, 2), None)])
def test_there_is_no_preset_of_what_was_not_measured_or_drafts_nothing(tuned, triple, measured):
    found = with_choice(tuned, lookahead=triple, measured_speedup=measured, keep_auto=False)
    path = tuned[1] / "none.yaml"
    assert not write_preset(found, path)
    assert not path.exists()


def with_choice(tuned, **changes) -> Tune:
    """The tuning with another recommendation."""
    found = tuned if isinstance(tuned, Tune) else Tune.model_validate(tuned[0].json)
    chosen = found.recommendation.model_copy(update=changes)
    return found.model_copy(update={"recommendation": chosen})


def test_a_preset_builds_the_triple_and_runs(tuned, checkpoint, model, tmp_path):
    path = tmp_path / "mine.yaml"
    assert write_preset(
        with_choice(tuned, lookahead=(2, 3, 2), measured_speedup=1.5, keep_auto=False), path
    )
    assert path.read_text().startswith("# Lookahead for ")
    assert "1.50x measured, over plain decoding" in path.read_text()
    built = trtla(
        "build", "--checkpoint-dir", checkpoint, "--output-dir", tmp_path / "engine",
        "--config", path, "--dry-run", "--json",
    )  # fmt: skip
    assert built.code == 0, built
    assert built.json["lookahead"] == [2, 3, 2]
    ran = trtla("run", "--engine-dir", model, "--config", path, "--input-text", "ab")
    assert ran.code == 0, ran


def test_one_table_has_what_was_measured_the_fastest_first(tuned):
    ran = trtla(*[arg for arg in tuned[2] if arg != "--json"])
    assert ran.code == 0, ran
    head, _, *rows = next(part.splitlines() for part in ran.out.split("\n\n") if "fed/step" in part)
    names = [cell.strip() for cell in head.strip("|").split("|")]
    assert names == ["arm", "tokens/s", "S", "median speed-up", "fed/step"]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    speeds = [float(row[3]) for row in cells]
    assert speeds == sorted(speeds, reverse=True)
    assert len({row[0] for row in cells}) == len(cells)  # no arm twice
    assert ran.out.count("fed/step") == 1


def test_the_same_command_measures_nothing_twice(tuned):
    _, folder, args = tuned
    path = folder / "out" / "measurements.jsonl"
    before = path.read_text()
    again = trtla(*args)
    assert again.code == 0
    assert "measurements are kept from before" in again.err
    assert path.read_text().startswith(before)  # a slow machine goes on
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = [(row["key"], row["name"]) for row in rows]
    assert len(set(names)) == len(names)


def test_other_circumstances_are_measured_anew(tuned, engine, prompts):
    ran = trtla(
        "tune", "--engine-dir", engine, "--prompts", prompts, "--batch-size", "1", *FAST,
        "--temperature", "0.5", "--output-dir", tuned[1] / "out",
    )  # fmt: skip
    assert ran.code == 0
    assert "kept from before" not in ran.err
    assert "(batch size 1)" in ran.out.splitlines()[0]
    assert "the knee" in ran.out


@pytest.mark.deep
def test_a_killed_run_goes_on_where_it_was(engine, prompts, tmp_path):
    args = (
        "tune", "--engine-dir", engine, "--prompts", prompts, "--batch-size", "1", *FAST,
        "--output-dir", tmp_path / "out", "--json",
    )  # fmt: skip
    path = tmp_path / "out" / "measurements.jsonl"
    going = subprocess.Popen(
        [sys.executable, "-m", "trtla", *map(str, args)],
        stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    while going.poll() is None and not (path.exists() and "\n" in path.read_text()):
        time.sleep(0.01)
    going.kill()
    going.wait()
    kept = [line for line in path.read_text().split("\n") if line.endswith("}")]
    done = trtla(*args)
    assert done.code == 0, done
    assert f"{len(kept)} measurements are kept from before" in done.err
    assert done.json["recommendation"]["measured_speedup"] > 0


def test_a_triple_for_tensorrt_llm_comes_with_a_bound(checkpoint, prompts, tmp_path):
    ran = trtla(
        "tune", "--backend", "tensorrt-llm", "--model-dir", checkpoint, "--gpu", "h100",
        "--prompts", prompts, *FAST, "--batch-size", "1", "--output-dir", tmp_path / "out",
        "--tokenizer-dir", checkpoint, "--json", "--write", tmp_path / "preset.yaml",
    )  # fmt: skip
    assert ran.code == 0, ran
    found = ran.json
    assert found["cost"]["source"] == "roofline"
    preset = (tmp_path / "preset.yaml").read_text()
    assert "by the roofline, not measured" in preset
    assert f"lookahead: {found['recommendation']['lookahead']}" in preset
    assert "a bound of steps' times, not a measurement" in found["cost"]["note"]
    assert all("speedup_vs_ar" not in row for row in found["rows"])
    assert {row["category"] for row in found["rows"]} == {"letters", "prompts", "all"}
    assert found["recommendation"]["measured_speedup"] is None
    assert found["recommendation"]["lookahead"] != [1, 1, 0]  # tokens are nearly free there
    assert sorted(path.name for path in (tmp_path / "out").glob(".*")) == []  # no engine is left


def test_a_dry_run_shows_the_plan_and_loads_nothing(engine, prompts, tmp_path):
    code = (
        "import sys\n"
        "from trtla.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    args = ("tune", "--engine-dir", engine, "--prompts", prompts, "--dry-run", "--json")
    args += ("--output-dir", tmp_path / "out")
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["limit"] == "4,3,4"
    assert found["batch_sizes"] == [1, 4]  # 16 is above the engine's 4
    assert found["prompts"] == {"letters": 1, "prompts": 1}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("--budget", "soon"), ("--budget", "'soon' is not a time", "see trtla tune --help")),
        (("--budget", "0s"), ("is not a time of at least 1s",)),
        (("--batch-size", "1,9"), ("batch size 9 is above the 4",)),
        (("--batch-size", "0"), ("--batch-size",)),
        (("--prompts", "poems"), ("prompt set poems is not known", "code, chat")),
        (("--prompts", "none.jsonl"), ("none.jsonl does not exist",)),
        (("--gpu", "h100"), ("--gpu h100 plans for TensorRT-LLM", "--backend tensorrt-llm")),
        (("--write", "x.txt"), ("--write x.txt is not a .yaml file",)),
        (("--write", "no/where/x.yaml"), ("the folder no/where of --write does not exist",)),
        (("--output-dir", "/dev/null/x"), ("/dev/null/x cannot be written", "--output-dir")),
        (("--max-output-len", "999"), ("--max-output-len 999 leaves no room",)),
        (("--max-output-len", "1"), ("--max-output-len is 1", "no step to draft for")),
        (("--temperature", "-1"), ("--temperature",)),
        (("--model-dir", "x"), ("--model-dir goes with TensorRT-LLM engines only",)),
        (
            ("--backend", "tensorrt-llm", "--gpu", "h100", "--temperature", "0.5"),
            ("--temperature is 0.5", "greedy only"),
        ),
        (("--backend", "tensorrt-llm", "--gpu", "tpu"), ("--gpu tpu is not known", "h100")),
    ],
)
def test_what_cannot_be_done_is_refused(engine, prompts, tmp_path, args, parts):
    flags = {"--prompts": prompts, "--output-dir": tmp_path / "out"}
    flags = {name: value for name, value in flags.items() if name not in args}
    given = [part for pair in flags.items() for part in pair]
    refused(trtla("tune", "--engine-dir", engine, *given, *args), 2, *parts)


def test_empty_prompts_are_refused(engine, tmp_path):
    for text, said in (("", "holds no prompts"), ('{"text": ""}\n', "has an empty prompt"),
                       ('{"category": "x"}\n', 'needs either "text" or "turns"')):  # fmt: skip
        path = tmp_path / "p.jsonl"
        path.write_text(text)
        refused(trtla("tune", "--engine-dir", engine, "--prompts", path), 2, said)


def test_a_preset_that_is_there_stays(engine, prompts, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("mine")
    ran = trtla("tune", "--engine-dir", engine, "--prompts", prompts, "--write", path)
    refused(ran, 2, "exists already", "--force")
    assert path.read_text() == "mine"


def test_a_plain_engine_has_nothing_to_tune(checkpoint, tmp_path):
    folder = tmp_path / "plain"
    assert trtla("build", checkpoint, "--output-dir", folder, "--no-lookahead").code == 0
    refused(
        trtla("tune", "--engine-dir", folder), 2, "leaves no triple to tune", "--lookahead 7,7,7"
    )


def test_without_a_model_there_is_nothing_to_tune(checkpoint):
    refused(trtla("tune"), 2, "there is nothing to tune", "--engine-dir")
    refused(trtla("tune", "--engine-dir", checkpoint), 2, "is a checkpoint, not an engine")
    planned = trtla("tune", "--backend", "tensorrt-llm")
    refused(planned, 2, "needs the model itself", "--model-dir")


def test_texts_that_would_end_at_once_are_of_full_length(engine: Path, tmp_path: Path) -> None:
    """Decoding goes on behind the end token: a verdict never rests on texts of no token."""
    ending, prompt = tmp_path / "model", tmp_path / "mine.txt"
    shutil.copytree(engine, ending)
    prompt.write_text("def add(a, b):\n")
    run = ("run", "--engine-dir", ending, "--input-file", prompt, "--json")
    first = trtla(*run, "--max-output-len", "1").json["results"][0]["output_ids"][0]
    (ending / "generation_config.json").write_text(json.dumps({"eos_token_id": first}))
    ended = trtla(*run, "--max-output-len", "16").json["results"][0]
    assert (ended["output_ids"], ended["finish_reason"]) == ([first], "end_id")
    out = tmp_path / "out"
    small = ("--batch-size", "1", *FAST, "--output-dir", out)
    ran = trtla("tune", "--engine-dir", ending, "--prompts", prompt, *small)
    assert ran.code == 0, ran
    assert "1 prompt and 16 tokens say little" in ran.err
    kept = [json.loads(line) for line in (out / "measurements.jsonl").read_text().splitlines()]
    turns = [row["value"] for row in kept if row["name"].startswith("turn ")]
    runs = [run for turn in turns for run in turn.values()]
    assert len(runs) > 4
    assert {len(output) for run in runs for output in run["outputs"]} == {16}
