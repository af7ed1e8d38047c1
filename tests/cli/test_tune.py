"""`trtla tune` on a tiny random model: document, files, resuming, presets, every refusal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, refused, trtla

FAST = ("--budget", "4s", "--rounds", "1", "--max-output-len", "16", "--num-prompts", "1")


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
        "tune", "--engine-dir", engine, "--prompts", prompts, "--batch-sizes", "1,2", *FAST,
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
    assert found["cost"]["source"] == "measured"
    assert [row["sequences"] for row in found["cost"]["rows"]] == [1, 2]
    assert found["cost"]["knee"] >= 1
    sizes = {tuple(row["lookahead"]) for row in found["grid"]}
    assert {(1, 1, 0), (4, 3, 4), (1, 2, 1)} <= sizes
    assert all(w <= 4 and n <= 3 and g <= 4 for w, n, g in sizes)  # the engine's, one by one
    assert {row["category"] for row in found["grid"]} == {"letters", "prompts", "all"}
    assert {row["batch_size"] for row in found["grid"]} == {1, 2}
    sources = {row["acceptance"] for row in found["grid"]}
    assert sources <= {"measured", "replayed", "interpolated"}


def test_verified_triples_have_their_error(tuned):
    verified = tuned[0].json["verified"]
    assert [1, 1, 0] in [row["lookahead"] for row in verified]
    for row in verified:
        wanted = 100 * (row["predicted_speedup"] / row["measured_speedup"] - 1)
        assert row["error_percent"] == pytest.approx(wanted, rel=0.01, abs=0.1)
    others = {row["drafter"] for row in tuned[0].json["alternatives"]}
    assert others == {"auto", "prompt-lookup"}


def test_verified_triples_are_known_and_not_guessed(tuned):
    found = tuned[0].json
    guessed = {
        (*row["lookahead"], row["category"])
        for row in found["grid"]
        if row["acceptance"] == "interpolated"
    }
    assert not guessed & {(*row["lookahead"], row["category"]) for row in found["verified"]}


def test_the_recommendation_is_the_fastest_that_was_verified_or_plain(tuned):
    found = tuned[0].json
    chosen = found["recommendation"]
    real = {
        tuple(row["lookahead"]): row["measured_speedup"]
        for row in found["verified"]
        if (row["category"], row["batch_size"]) == ("all", 1)
    }
    fastest = max(real, key=lambda triple: real[triple])
    expected = fastest if real[fastest] >= 1.02 else (1, 1, 0)
    assert tuple(chosen["lookahead"]) == expected
    assert chosen["measured_speedup"] == real[expected]
    assert [row["batch_size"] for row in chosen["by_batch_size"]] == [1, 2]
    assert [row["category"] for row in chosen["by_category"]] == ["letters", "prompts"]


def test_report_reads_the_document(tuned, tmp_path):
    ran = trtla("report", tuned[1] / "out" / "tune.json", "-o", tmp_path / "report.html")
    assert ran.code == 0, ran
    assert (tmp_path / "report.html").stat().st_size > 1000


def test_pictures_are_beside_it(tuned):
    for name in ("heat_map.svg", "heat_map.png", "cost_curve.svg", "cost_curve.png"):
        assert (tuned[1] / "out" / name).stat().st_size > 500


def test_the_preset_builds_and_names_the_triple(tuned, checkpoint, tmp_path):
    ran, folder, _ = tuned
    text = (folder / "mine.yaml").read_text()
    assert text.startswith("# Lookahead for ")
    built = trtla(
        "build", "--checkpoint-dir", checkpoint, "--output-dir", tmp_path / "engine",
        "--config", folder / "mine.yaml", "--dry-run", "--json",
    )  # fmt: skip
    assert built.code == 0, built
    assert built.json["lookahead"] == ran.json["recommendation"]["lookahead"]


def test_the_preset_runs(tuned, model):
    preset = tuned[1] / "mine.yaml"
    ran = trtla("run", "--engine-dir", model, "--config", preset, "--input-text", "ab")
    assert ran.code == 0, ran


def test_the_same_command_measures_nothing_twice(tuned):
    _, folder, args = tuned
    path = folder / "out" / "measurements.jsonl"
    added = ["contenders"]
    while any(name.startswith("contenders") for name in added):  # a slow machine is not done yet
        before = path.read_text()
        again = trtla(*args)
        assert again.code == 0
        assert "measurements are kept from before" in again.err
        assert path.read_text().startswith(before)
        names = [json.loads(line)["name"] for line in path.read_text().splitlines()]
        known, added = names[: before.count("\n")], names[before.count("\n") :]
    assert not set(added) & set(known)


def test_other_circumstances_are_measured_anew(tuned, engine, prompts):
    ran = trtla(
        "tune", "--engine-dir", engine, "--prompts", prompts, "--batch-sizes", "1", *FAST,
        "--temperature", "0.5", "--output-dir", tuned[1] / "out",
    )  # fmt: skip
    assert ran.code == 0
    assert "kept from before" not in ran.err
    assert "over plain decoding (batch size 1)" in ran.out or "Nothing beats" in ran.out
    assert "the knee" in ran.out


def test_a_killed_run_goes_on_where_it_was(engine, prompts, tmp_path):
    command = [
        sys.executable, "-m", "trtla", "tune", "--engine-dir", str(engine), "--prompts",
        str(prompts), "--batch-sizes", "1", *FAST, "--output-dir", str(tmp_path / "out"), "--json",
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    path, seen = tmp_path / "out" / "measurements.jsonl", 0
    for kill in (signal.SIGKILL, signal.SIGINT):
        going = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        while going.poll() is None and (not path.exists() or path.stat().st_size <= seen):
            time.sleep(0.01)
        going.send_signal(kill)
        _, err = going.communicate()
        seen = path.stat().st_size
        # Done already, or so far that Python has taken its handlers off: then the signal ends it.
        assert going.returncode in (-kill, 130, 0), err
    kept = [line for line in path.read_text().split("\n") if line.endswith("}")]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert f"{len(kept)} measurements are kept from before" in done.stderr
    assert json.loads(done.stdout)["recommendation"]["measured_speedup"] > 0


def test_without_matplotlib_there_is_a_note(tuned, monkeypatch):
    _, folder, args = tuned
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    shutil.rmtree(folder / "out" / "none", ignore_errors=True)
    ran = trtla(*args)
    assert ran.code == 0, ran
    assert "no pictures: charts need the package matplotlib" in ran.err


def test_a_triple_for_tensorrt_llm_comes_with_a_bound(checkpoint, prompts, tmp_path):
    ran = trtla(
        "tune", "--backend", "tensorrt-llm", "--model-dir", checkpoint, "--gpu", "h100",
        "--prompts", prompts, *FAST, "--batch-sizes", "1", "--output-dir", tmp_path / "out",
        "--tokenizer-dir", checkpoint, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran
    found = ran.json
    assert found["cost"]["source"] == "roofline"
    assert "a bound of steps' times, not a measurement" in found["cost"]["note"]
    assert found["verified"] == []
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
        (("--batch-sizes", "1,9"), ("batch size 9 is above the 4",)),
        (("--batch-sizes", "0"), ("--batch-sizes",)),
        (("--prompts", "poems"), ("prompts poems are not known", "code, chat")),
        (("--prompts", "none.jsonl"), ("none.jsonl does not exist",)),
        (("--gpu", "h100"), ("--gpu h100 plans for TensorRT-LLM", "--backend tensorrt-llm")),
        (("--write", "x.txt"), ("--write x.txt is not a .yaml file",)),
        (("--write", "no/where/x.yaml"), ("the folder no/where of --write does not exist",)),
        (("--output-dir", "/dev/null/x"), ("/dev/null/x cannot be written to", "--output-dir")),
        (("--max-output-len", "999"), ("--max-output-len 999 leaves no room",)),
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
    assert trtla("build", "--checkpoint-dir", checkpoint, "--output-dir", folder).code == 0
    refused(trtla("tune", "--engine-dir", folder), 2, "is a plain engine", "--lookahead 7,7,7")


def test_without_a_model_there_is_nothing_to_tune(checkpoint):
    refused(trtla("tune"), 2, "there is nothing to tune", "--engine-dir")
    refused(trtla("tune", "--engine-dir", checkpoint), 2, "is a checkpoint, not an engine")
    planned = trtla("tune", "--backend", "tensorrt-llm")
    refused(planned, 2, "needs the model itself", "--model-dir")
