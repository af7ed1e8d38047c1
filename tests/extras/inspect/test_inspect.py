"""What `inspect` tells of sound folders; broken ones are in test_bad_models and test_engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.models import VARIANTS, make_model, save_model
from trtla import LookaheadConfig
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.errors import UsageError
from trtla.extras.inspect.folder import inspect
from trtla.formats.engine_limits import BuildSettings

TIED = next(v for v in VARIANTS if v.name == "tied")


def test_model_checkpoint_and_engine_are_told_apart_and_described(tmp_path: Path) -> None:
    model = make_model(TIED)
    save_model(model, TIED, tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").write_text("{}")
    convert(tmp_path / "hf", tmp_path / "ckpt", tp_size=2)
    settings = BuildSettings(LookaheadConfig(3, 3, 3), max_batch_size=2)
    build_engine(tmp_path / "ckpt", tmp_path / "engine", settings)
    found = {name: inspect(tmp_path / name) for name in ("hf", "ckpt", "engine")}
    json.dumps(found)
    for description in found.values():
        assert description["problems"] == []
        assert description["parameters"] == sum(p.numel() for p in model.parameters())
        assert description["shape"]["num_key_value_heads"] == 2
        assert description["tokenizer"] is True
        assert description["bytes"] > 100_000
    assert [d["kind"] for d in found.values()] == ["Hugging Face model", "checkpoint", "engine"]
    assert [d["dtype"] for d in found.values()] == ["float32", "float16", "float16"]
    assert found["ckpt"]["mapping"]["tp_size"] == 2
    engine = found["engine"]
    assert (engine["lookahead"], engine["max_draft_len"]) == ([3, 3, 3], 11)
    assert (engine["max_text_len"], engine["limits"]["max_seq_len"]) == (16, 27)
    assert engine["backend"] == "torch"


@pytest.mark.parametrize("text", ["[]", "{}", '{"model": 1}'])
def test_unknown_folders_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no config"):
        inspect(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match="belongs to no"):
        inspect(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        inspect(tmp_path / "nothing")
