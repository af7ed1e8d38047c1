"""The command line on a tiny random T5 with a byte tokenizer: it runs as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import needs, refused, there, trtla
from tests.support.encoder_decoders import END, make_t5


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_t5(tmp_path_factory.mktemp("t5"))


TEXTS = ("summarize: the mill is open again", "a ferry")


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--drafter", "prompt-lookup"),
        ("--drafter", "ngram", "--temperature", "0.8"),
        ("--lookahead", "auto"),
        ("--drafter", "lookahead,ngram", "--request-lookahead", "3,3,3"),
    ],
    ids=" ".join,
)
def test_a_t5_folder_runs_and_no_drafter_changes_its_text(t5: Path, flags: tuple[str, ...]) -> None:
    ran = trtla(
        "run", "--engine-dir", t5, "--input-text", *TEXTS, "--max-output-len", "20",
        *flags, "--check-lossless", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    results = ran.json["results"]
    assert [entry["lossless"] for entry in results] == [True, True]
    assert [entry["input_text"] for entry in results] == list(TEXTS)
    assert [entry["input_ids"][-1] for entry in results] == [END, END]
    assert all(entry["output_ids"][0] != 257 for entry in results)
    assert "encoder of transformers" in ran.json["executor"]


def test_a_jsonl_file_streams_with_settings_of_its_own(t5: Path, tmp_path: Path) -> None:
    lines = [
        {"text": TEXTS[0], "max_output_len": 5},
        {"input_ids": [97, 98, END], "max_output_len": 7, "drafter": "prompt-lookup"},
        {"text": TEXTS[1], "max_output_len": 9, "lookahead": [3, 3, 3]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = trtla("run", "--engine-dir", t5, "--input-file", path, "--stream", "--json")
    assert ran.code == 0, ran.err
    *chunks, document = map(json.loads, ran.out.splitlines())
    assert [len(r["output_ids"]) for r in document["results"]] == [5, 7, 9]
    for index, entry in enumerate(document["results"]):
        assert entry["text"] == "".join(c["text"] for c in chunks if c["index"] == index)


@pytest.mark.parametrize("padding", [0, 2])
def test_a_draft_model_of_the_same_tokenizer_drafts(t5: Path, tmp_path: Path, padding: int) -> None:
    small = make_t5(tmp_path, seed=5, vocab=258 + padding)
    ran = trtla(
        "run", "--engine-dir", t5, "--input-text", TEXTS[0], "--drafter", f"draft:{small}",
        "--check-lossless", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    one = ran.json["results"][0]
    assert (one["drafted"] if padding else one["accepted"]) > 0  # other sizes, other weights


def test_draft_models_that_do_not_fit_are_refused_before_anything_loads(
    t5: Path, model: Path, tmp_path: Path
) -> None:
    asked = ("--input-text", "a", "--drafter")
    ran = trtla("run", "--engine-dir", t5, *asked, f"draft:{model}")
    refused(ran, 2, f"the draft model {model} is a decoder alone", "same family")
    ran = trtla("run", "--engine-dir", model, *asked, f"draft:{t5}")
    refused(ran, 2, f"the draft model {t5} is an encoder-decoder", "same family")


def test_commands_that_need_a_decoder_alone_refuse_it(t5: Path, tmp_path: Path) -> None:
    built = ("neither converted nor built", f"trtla run --engine-dir {t5}")
    out = tmp_path / "out"
    lines = (
        (("convert", "--model-dir", t5, "--output-dir", out), *built),
        (("build", "--checkpoint-dir", t5, "--output-dir", out), *built),
        (("tune", "--engine-dir", t5), "is an encoder-decoder", "--request-"),
        (("chat", "--engine-dir", t5), "is an encoder-decoder", "trtla run"),
    )
    for command, *parts in (line for line in lines if there(line[0][0])):
        refused(trtla(*command), 2, *parts)
        assert not out.exists()


def test_prompts_and_outputs_have_limits(t5: Path) -> None:
    ran = trtla("run", "--engine-dir", t5, "--input-text", "")
    refused(ran, 2, "empty prompt")
    ran = trtla("run", "--engine-dir", t5, "--input-text", "a" * 5000)
    refused(ran, 2, "is 5001 tokens long, above the encoder's 4096", "shorten the prompt")
    ran = trtla("run", "--engine-dir", t5, "--input-text", "a", "--max-output-len", "64")
    refused(ran, 2, "1 prompt + 64 output tokens = 65, above max_seq_len 64", "--max-output-len")
    ran = trtla("run", "--engine-dir", t5, "--input-text", "a" * 300, "--max-output-len", "63")
    assert ran.code == 0, ran.err


def test_broken_folders_are_told_in_one_sentence(t5: Path, tmp_path: Path) -> None:
    config = json.loads((t5 / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = trtla("run", "--engine-dir", tmp_path, "--input-text", "a", "--tokenizer-dir", t5)
    refused(ran, 2, f"{tmp_path} has no weights", "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**config, "d_model": "wide"}))
    ran = trtla("run", "--engine-dir", tmp_path, "--input-text", "a", "--tokenizer-dir", t5)
    refused(ran, 2, "d_model")


@needs("inspect")
def test_inspect_and_doctor_know_it(t5: Path) -> None:
    from transformers import T5ForConditionalGeneration

    ran = trtla("inspect", t5, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["architecture"] == "T5ForConditionalGeneration"
    assert ran.json["shape"]["num_hidden_layers"] == 2
    loaded = T5ForConditionalGeneration.from_pretrained(t5)
    assert ran.json["parameters"] == sum(weight.numel() for weight in loaded.parameters())
    assert trtla("doctor", t5).code == 0
