"""`trtla summarize` on a tiny random model: sides, truncation, ROUGE, threshold, files, errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.command import ROOT, Ran, process, refused, trtla
from trtla.data.eval_items import load_items
from trtla.measuring.arms import ArmRun
from trtla.measuring.summaries import side
from trtla.settings.eval_tasks import EVAL_TASKS
from trtla.settings.messages import AS_TEXT

SIDE_KEYS = {
    "arm", "time_s", "output_tokens", "tokens_per_s", "steps", "tokens_per_step",
    "distinct_4grams", "rouge1", "rouge2", "rougeL", "rougeLsum",
}  # fmt: skip


def summarize(engine: Path, articles: Path, *args: str | Path) -> Ran:
    return trtla(
        "summarize", "--engine-dir", engine, "--dataset", articles, "--max-output-len", "12", *args
    )


def test_three_sides_write_the_same_text(
    engine: Path, model: Path, articles: Path, tmp_path: Path
) -> None:
    output = tmp_path / "items.jsonl"
    ran = summarize(
        engine, articles, "--hf-model-dir", model, "--test-hf", "--test-trtla", "--json",
        "--output", output, "--batch-size", "2",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    document = ran.json
    assert document["schema_version"] == 1
    assert document["items"] == 2
    assert {"command", "cpu", "torch", "trtla"} <= set(document["environment"])
    names = [side["arm"] for side in document["rows"]]
    assert names == ["trtla", "trtla_without_lookahead", "hugging_face"]
    assert all(set(side) >= SIDE_KEYS for side in document["rows"])
    assert len({side["rouge1"] for side in document["rows"]}) == 1
    assert len({side["output_tokens"] for side in document["rows"]}) == 1
    assert [side["equal_texts"] for side in document["rows"]] == [2, 2, 2]
    assert document["rows"][1]["tokens_per_step"] == document["rows"][1]["speedup_vs_ar"] == 1.0
    items = [json.loads(line) for line in output.read_text().splitlines()]
    assert [item["index"] for item in items] == [0, 1]
    for item in items:
        assert len({side["text"] for side in item["sides"].values()}) == 1


def test_transformers_alone_needs_no_engine(model: Path, articles: Path) -> None:
    ran = trtla(
        "summarize", "--test-hf", "--hf-model-dir", model, "--dataset", articles,
        "--max-output-len", "4", "--max-ite", "1", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert [row["arm"] for row in ran.json["rows"]] == ["hugging_face"]


def test_lines_and_table(engine: Path, articles: Path) -> None:
    ran = summarize(engine, articles, "--max-ite", "1")
    assert ran.code == 0, ran.err
    for part in ("total latency: ", "total output tokens: 12", "tokens per second: "):
        assert f"trtla ({part}" in ran.out
    assert "trtla beam 0 result\n  rouge1: " in ran.out
    figures = re.findall(r"(?:latency|second|rouge\w+): (\S+?)(?: sec)?\)?$", ran.out, re.M)
    assert len(figures) == 12
    assert all(re.fullmatch(r"\d+\.\d{3}", one) for one in figures), figures
    assert "speed-up over plain decoding" in ran.out
    assert "hugging_face" not in ran.out


def test_prompts_are_cut_to_the_engine(engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"article": "word " * 200, "highlights": "Words."}) + "\n")
    output = tmp_path / "items.jsonl"
    ran = summarize(engine, path, "--output", output)
    assert ran.code == 0, ran.err
    assert "note: max_input_len 923 is cut to the engine's 128" in ran.err
    assert json.loads(output.read_text())["input_tokens"] == 128


def test_the_end_of_a_long_article_stays(model: Path) -> None:
    from trtla.llm.text import Tokenizer
    from trtla.measuring.summaries import encode

    tokenizer = Tokenizer(model)
    text = EVAL_TASKS["summarize"].prompt("start " + "word " * 50 + "end")
    (ids,) = encode(tokenizer, [text], 20, AS_TEXT)
    assert tokenizer.inner.decode(ids, skip_special_tokens=True).endswith("word end TL;DR:")


def test_prompt_text() -> None:
    assert EVAL_TASKS["summarize"].prompt(" It did n't rain. ") == "It didn't rain.  TL;DR:"
    assert EVAL_TASKS["code_completion"].prompt("def f(x):\n    ") == "def f(x):"


def test_rouge_is_that_of_rouge_score(model: Path) -> None:
    from trtla.llm.text import Tokenizer

    tokenizer = Tokenizer(model).inner
    ids = tuple(tokenizer.encode("the cat sat"))
    run = ArmRun(
        outputs=(ids,), time_s=1.0, first_s=(1.0,), last_s=(1.0,), steps=2, steps_each=(2,),
        forwards=3,
    )  # fmt: skip
    found = side("s", run, tokenizer, ["the cat\nsat down"]).means
    assert found["rouge1"] == pytest.approx(100 * 2 * 3 / (3 + 4))
    assert found["rouge2"] == pytest.approx(100 * 2 * 2 / (2 + 3))
    assert found["rougeLsum"] == pytest.approx(100 * 2 * 3 / (3 + 4))


def test_a_threshold_that_is_missed(engine: Path, articles: Path) -> None:
    ran = summarize(engine, articles, "--rouge1-threshold", "99", "--json", "-q")
    assert ran.json["items"] == 2
    refused(ran, 3, "rouge1", "99")
    assert summarize(engine, articles, "--rouge1-threshold", "0").code == 0


def test_bad_settings(engine: Path, articles: Path, tmp_path: Path) -> None:
    refused(summarize(engine, articles, "--test-hf"), 2, "--hf-model-dir")
    refused(trtla("summarize", "--dataset", articles), 2, "no model is named", "--engine-dir")
    ran = summarize(engine, articles, "--test-hf", "--hf-model-dir", engine, "--temperature", "0.5")
    refused(ran, 2, "greedy", "0.5")
    refused(summarize(engine, articles, "--lookahead", "7,7,7"), 2, "7,7,7")
    refused(summarize(engine, articles, "--batch-size", "5"), 2, "5")
    refused(summarize(engine, articles, "--output", tmp_path / "no" / "x.jsonl"), 2, "no")
    refused(summarize(engine, articles, "--max-output-len", "256"), 2, "256")
    refused(summarize(engine, tmp_path / "absent.jsonl"), 2, "absent.jsonl")
    refused(summarize(engine, Path("xsum")), 2, "xsum", "--dataset PATH")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"article": "a", "highlights": "b"}\n{"article": "a"}\n')
    refused(summarize(engine, bad), 2, "line 2", '"highlights"')


def test_a_missing_package_names_the_extra(
    engine: Path, articles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtla.measuring.summaries.find_spec", lambda name: None)
    refused(summarize(engine, articles), 1, "rouge-score", "pip install 'trtla[eval]'")


def test_an_unreachable_hub_names_the_way_out(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")

    def unreachable(*args: object, **kwargs: object) -> None:
        raise ConnectionError("cannot reach the hub")

    monkeypatch.setattr("trtla.formats.hub._silence", lambda endpoint: "")
    monkeypatch.setattr("datasets.load_dataset", unreachable)
    refused(trtla("summarize", "--engine-dir", engine), 2, "cannot reach", "--dataset PATH")


@pytest.mark.deep
def test_no_hub_means_no_waiting(engine: Path) -> None:
    """Port 9 refuses at once; with the client's own retries this would take a minute."""
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(engine.parent / "no-cache")}
    env |= {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
    done = process("summarize", "--engine-dir", engine, env=env)
    assert done.returncode == 2, done.stderr
    assert "error: cnn_dailymail cannot be loaded" in done.stderr
    assert "Retrying" not in done.stderr


def test_the_shipped_articles() -> None:
    path = ROOT / "trtla" / "assets" / "articles.jsonl"
    articles = load_items(str(path), EVAL_TASKS["summarize"], 100, 0)
    assert len(articles) == 12
    assert all(150 <= len(item.text.split()) <= 300 for item in articles)
    assert all(item.reference.count("\n") >= 2 for item in articles)


ROWS = [{"id": str(n), "article": f"Article {n}.", "highlights": f"Text {n}."} for n in range(9)]


def saved(folder: Path, layout: str) -> Path:
    """A data set in a folder, as `datasets`, the hub or a person saves it; the one above it."""
    own = folder / "ccdv" / "cnn_dailymail"
    if layout == "jsonl":
        own.mkdir(parents=True)
        for name, rows in {"test": ROWS, "train": ROWS[:1]}.items():
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (own / f"{name}.jsonl").write_text(lines)
        return folder
    datasets = pytest.importorskip("datasets")
    test, train = datasets.Dataset.from_list(ROWS), datasets.Dataset.from_list(ROWS[:1])
    if layout == "arrow":
        datasets.DatasetDict({"test": test, "train": train}).save_to_disk(own)
        datasets.load_from_disk(own)["test"].map(lambda row: row)  # writes a cache beside it
        assert list(own.rglob("cache-*.arrow"))
    else:
        for name, split in {"test": test, "train": train}.items():
            split.to_parquet(own / "3.0.0" / f"{name}-00000-of-00001.parquet")
    return folder


@pytest.mark.parametrize("layout", ["jsonl", "arrow", "parquet"])
def test_a_folder_is_shuffled_as_datasets_does(tmp_path: Path, layout: str) -> None:
    folder, task = saved(tmp_path, layout), EVAL_TASKS["summarize"]
    items = load_items(str(folder), task, 5, 3)
    assert items == load_items(str(folder / "ccdv" / "cnn_dailymail"), task, 5, 3)
    datasets = pytest.importorskip("datasets")
    expected = datasets.Dataset.from_list(ROWS).shuffle(seed=3).select(range(5))
    assert [item.text for item in items] == expected["article"][:]


def test_a_folder_through_the_option(engine: Path, tmp_path: Path) -> None:
    folder = saved(tmp_path, "jsonl")
    ran = trtla(
        "summarize", f"--engine_dir={engine}", f"--dataset_dir={folder}", "--test_trt_llm",
        "--output_len=4", "--max_ite=3", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.json["items"] == 3
    (folder / "ccdv" / "cnn_dailymail" / "test.jsonl").unlink()
    refused(summarize(engine, folder), 2, "no test split, only train", ".jsonl file")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(summarize(engine, empty), 2, "holds no .parquet, .arrow or .jsonl files")


def test_broken_files_of_a_folder(engine: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    path = tmp_path / "test.parquet"
    path.write_bytes(b"PAR1")
    refused(summarize(engine, tmp_path), 2, "test.parquet cannot be read", "copy the file again")
    broken = pyarrow.array([b"\xff"]).view(pyarrow.string())  # taking its rows would not end well
    parquet.write_table(pyarrow.table({"article": broken, "highlights": ["b"]}), path)
    refused(summarize(engine, tmp_path), 2, "test.parquet cannot be read", "copy the file again")
    parquet.write_table(pyarrow.table({"article": ["a"], "summary": ["b"]}), path)
    parts = ('no single column "highlights"', "article and highlights")
    refused(summarize(engine, tmp_path), 2, *parts)


def test_other_tasks_read_their_own_columns(engine: Path, tmp_path: Path) -> None:
    refused(trtla("summarize", engine, "--eval_task=code_completion"), 2, "code_completion", "give")
    path = tmp_path / "code.jsonl"
    line = {"task_id": "a", "prompt": "def f(x):\n    ", "canonical_solution": "return x"}
    path.write_text(json.dumps(line) + "\n")
    ran = summarize(engine, path, "--eval_task=code_completion", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["items"] == 1
    assert ran.json["settings"]["eval_task"] == "code_completion"


def test_perplexity_of_prompt_and_output(engine: Path, model: Path, articles: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ran = summarize(engine, articles, "--eval_ppl", "--max-ite", "1", "--json")
    assert ran.code == 0, ran.err
    found = ran.json["rows"][0]["perplexity"]
    assert found == ran.json["rows"][1]["perplexity"]
    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    text = EVAL_TASKS["summarize"].prompt("The old mill is open again. Many came.")
    ids = torch.tensor([AutoTokenizer.from_pretrained(model).encode(text)])
    ids = target.generate(ids, max_new_tokens=12, do_sample=False)
    with torch.inference_mode():
        loss = target(ids, labels=ids).loss
    assert found == pytest.approx(float(loss.exp()), rel=1e-4)
    given = ("--max-ite", "1", "--eval_ppl", "--rouge1-threshold", "0", "--check_accuracy", "-q")
    refused(summarize(engine, articles, *given), 3, "perplexity", "threshold 15")
    above = f"--tensorrt_llm_ppl_threshold={found + 1}"
    assert summarize(engine, articles, *given, above).code == 0
    refused(summarize(engine, articles, "--ppl-threshold", "9"), 2, "add --eval-ppl")


def test_perplexity_of_contexts(engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"text": "A long text.", "meta": {}}) + "\n")
    asked = ("--eval_task=eval_context_ppl", "--ppl-threshold=1", "-q")
    ran = summarize(engine, path, *asked)
    refused(ran, 3, "perplexity", "threshold 1")
    assert "  Per-token perplexity: " in ran.out
    assert "rouge" not in ran.out
    refused(
        summarize(engine, path, "--eval_task=eval_context_ppl", "--rouge1-threshold=1"), 2, "lacks"
    )
