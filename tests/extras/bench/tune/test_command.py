"""`trtla tune` on a tiny random model: document, table, preset, every refusal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command import refused, trtla
from tests.support.families import folder_and_model
from trtla.extras.bench.tune import tuner
from trtla.extras.bench.tune.documents import Tune
from trtla.extras.bench.tune.output import recommendation, write_preset

FAST = ("--budget", "1h", "-n", "8", "--num-prompts", "1")


@pytest.fixture(scope="module", autouse=True)
def _few_rounds():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuner, "_MOST_ROUNDS", 2)
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
    """The document of one tuning, and its preset."""
    preset = tmp_path_factory.mktemp("tuned") / "mine.yaml"
    ran = trtla("tune", engine, "--prompts", prompts, *FAST, "--write", preset, "--json")
    assert ran.code == 0, ran
    return ran.json, preset


def test_the_document_has_measured_and_predicted_rows(tuned):
    found, preset = tuned
    assert (found["schema_version"], found["command"]) == (1, "tune")
    assert {"command", "cpu", "cores", "torch", "commit"} <= set(found["environment"])
    measured = [row for row in found["rows"] if row.get("speedup_vs_ar")]
    assert {row["arm"] for row in measured} > {"ar", "lookahead auto"}
    assert len(measured) == 6
    assert all(row["equal_texts"] == row["texts"] > 0 for row in measured)
    for row in found["rows"]:
        if row["arm"] not in ("ar", "lookahead auto"):
            w, n, g = map(int, row["arm"].removeprefix("lookahead ").split(","))
            assert w <= 4
            assert n <= 3
            assert g <= 4
    assert preset.read_text().splitlines()[-1].startswith("lookahead: ")


def test_report_reads_the_document(tuned, tmp_path):
    (tmp_path / "tune.json").write_text(json.dumps(tuned[0]))
    ran = trtla("report", tmp_path / "tune.json", "-o", "-")
    assert ran.code == 0, ran
    assert "lookahead auto" in ran.out


def with_choice(tuned, **changes) -> Tune:
    """The tuning with another recommendation."""
    found = Tune.model_validate(tuned[0])
    chosen = found.recommendation.model_copy(update=changes)
    return found.model_copy(update={"recommendation": chosen})


@pytest.mark.parametrize(
    ("choice", "line"),
    [
        (
            ((1, 2, 1), 1.21, 1.24, True),
            "Keep --lookahead auto, the default: 1.24x plain decoding at batch size 1; the best "
            "triple, 1,2,1, is 1.21x.",
        ),
        (
            ((1, 1, 0), 1.0, 1.24, True),
            "Keep --lookahead auto, the default: 1.24x plain decoding at batch size 1; no triple "
            "is faster.",
        ),
        (
            ((2, 3, 2), 1.5, 1.2, False),
            "Use --lookahead 2,3,2: 1.50x plain decoding at batch size 1; auto is 1.20x.",
        ),
        (
            ((1, 1, 0), 1.0, 0.9, False),
            "Use --lookahead 1,1,0: nothing is 2 % faster than plain decoding at batch size 1; "
            "auto is 0.90x.",
        ),
        (
            ((2, 3, 2), None, None, False),
            "Build with --lookahead 2,3,2: 1.50x plain decoding at batch size 1, predicted.",
        ),
    ],
)
def test_the_recommendation_is_one_line_and_a_preset_that_runs(
    tuned, model, tmp_path, choice, line
):
    names = ("lookahead", "measured_speedup", "auto_speedup", "keep_auto")
    found = with_choice(tuned, predicted_speedup=1.5, **dict(zip(names, choice, strict=True)))
    assert recommendation(found) == line
    path = tmp_path / "mine.yaml"
    write_preset(found, path)
    text = path.read_text()
    assert line in text
    value = "auto" if choice[3] else list(choice[0])
    assert text.endswith(f"\nlookahead: {value}\n")
    ran = trtla("run", model, "--config", path, "-p", "ab", "-n", "2")
    assert ran.code == 0, ran


def test_a_preset_builds_the_triple(tuned, checkpoint, tmp_path):
    path = tmp_path / "mine.yaml"
    write_preset(with_choice(tuned, lookahead=(2, 3, 2), keep_auto=False), path)
    out = ("--output-dir", tmp_path / "engine")
    built = trtla("build", checkpoint, *out, "--config", path, "--dry-run", "--json")
    assert built.code == 0, built
    assert built.json["lookahead"] == [2, 3, 2]


def test_a_triple_for_tensorrt_llm_comes_with_a_bound(model, prompts):
    """Texts that would end at once are of full length, or nothing could be predicted."""
    ran = trtla("tune", model, "--gpu", "H100", "--prompts", prompts, *FAST)
    assert ran.code == 0, ran
    first, _, *table = ran.out.splitlines()
    assert first.startswith("Build with --lookahead ")
    assert first.endswith("predicted.")
    assert "a bound by the roofline" in ran.err
    assert "tokens/s" not in "".join(table)
    assert ran.out.count("fed/step") == 1


def test_texts_go_on_behind_an_end_token(engine: Path, tmp_path: Path) -> None:
    ending, prompt = tmp_path / "model", tmp_path / "mine.txt"
    shutil.copytree(engine, ending)
    prompt.write_text("def add(a, b):\n")
    first = trtla("run", ending, "--input-file", prompt, "-n", "1", "--json").json["results"][0]
    eos = {"eos_token_id": first["output_ids"][0]}
    (ending / "generation_config.json").write_text(json.dumps(eos))
    ran = trtla("tune", ending, "--prompts", prompt, *FAST, "--json")
    assert ran.code == 0, ran
    measured = [row for row in ran.json["rows"] if row.get("speedup_vs_ar")]
    assert {row["output_tokens"] for row in measured} == {2 * 8}  # rounds, tokens


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("--budget", "soon"), ("--budget", "'soon' is not a time", "see trtla tune --help")),
        (("--budget", "0s"), ("is not a time of at least 1s",)),
        (("--batch-size", "9"), ("batch size 9 is above the 4",)),
        (("--batch-size", "0"), ("--batch-size",)),
        (("--prompts", "poems"), ("prompt set poems is not known", "code, chat")),
        (("--prompts", "none.jsonl"), ("none.jsonl does not exist",)),
        (("--write", "x.txt"), ("--write x.txt is not a .yaml file",)),
        (("--write", "no/where/x.yaml"), ("the folder no/where of --write does not exist",)),
        (("--max-output-len", "999"), ("--max-output-len 999 leaves no room",)),
        (("--max-output-len", "1"), ("--max-output-len is 1", "no step to draft for")),
        (("--temperature", "-1"), ("--temperature",)),
        (("--gpu", "h100", "--temperature", "0.5"), ("--temperature is 0.5", "greedy only")),
        (("--gpu", "tpu"), ("--gpu tpu is not known", "h100")),
    ],
)
def test_what_cannot_be_done_is_refused(engine, prompts, args, parts):
    given = () if "--prompts" in args else ("--prompts", prompts)
    refused(trtla("tune", engine, *given, *args), 2, *parts)


def test_a_preset_that_is_there_stays(engine, prompts, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("mine")
    ran = trtla("tune", engine, "--prompts", prompts, "--write", path)
    refused(ran, 2, "exists already", "--force")
    assert path.read_text() == "mine"


def test_models_without_a_triple_to_tune_are_refused(checkpoint, tmp_path):
    folder = tmp_path / "plain"
    assert trtla("build", checkpoint, "--output-dir", folder, "--no-lookahead").code == 0
    refused(trtla("tune", folder), 2, "leaves no triple to tune", "--lookahead 7,7,7")
    refused(trtla("tune", checkpoint), 2, "is a checkpoint, not an engine")
    refused(trtla("tune"), 2, "missing option", "give -m")


def test_a_gpu_is_for_families_that_tensorrt_llm_runs(prompts):
    mixture, _ = folder_and_model("qwen3-moe")
    ran = trtla("tune", mixture, "--gpu", "h100", "--prompts", prompts)
    refused(ran, 2, "TensorRT-LLM cannot run the model", "Qwen3MoeForCausalLM")
