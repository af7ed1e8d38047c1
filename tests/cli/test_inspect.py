"""`trtla inspect`: what it tells of every kind of folder, and of broken ones."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.command import refused, trtla


def test_every_kind(model: Path, checkpoint: Path, engine: Path) -> None:
    for folder, kind in (
        (model, "Hugging Face model"),
        (checkpoint, "checkpoint"),
        (engine, "engine"),
    ):
        ran = trtla("inspect", folder, "--json")
        assert ran.code == 0, ran.err
        assert ran.json["schema_version"] == 1
        assert ran.json["kind"] == kind
        assert ran.json["problems"] == []
        assert ran.json["dtype"] == "float32"
        assert ran.json["shape"]["num_key_value_heads"] == 2
    assert (ran.json["lookahead"], ran.json["max_draft_len"]) == ([4, 3, 4], 15)
    assert (ran.json["limits"]["max_batch_size"], ran.json["max_text_len"]) == (4, 256)


def test_for_people(engine: Path) -> None:
    ran = trtla("inspect", engine)
    assert ran.code == 0
    assert "| lookahead " in ran.out
    assert "| max_draft_len " in ran.out
    rows = dict(line.strip("| ").split("|", 1) for line in ran.out.splitlines())
    shown = {key.strip(): value.strip() for key, value in rows.items()}
    assert shown["size"].endswith(" MB")
    assert shown["chat_template"] == "no"
    assert (shown["tokenizer"], shown["shape.attn_bias"]) == ("yes", "no")
    assert not {"problems", "bytes", "quant_algo"} & shown.keys()


def test_problems_are_told(engine: Path, tmp_path: Path) -> None:
    broken = tmp_path / "engine"
    shutil.copytree(engine, broken)
    weights = broken / "rank0.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    ran = trtla("inspect", broken)
    assert "problem: " in ran.out
    refused(ran, 3, "problem")
    assert trtla("inspect", broken, "--json").json["problems"]
