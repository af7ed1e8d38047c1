"""Engines that trtllm-build made: opened, inspected, adopted, and refused with the key at fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.inspected import inspected
from tests.support.trtllm_engines import RELEASES, edit_plugins, write_engine
from trtla import LookaheadConfig
from trtla.cli.shared.model import check_triples
from trtla.errors import UsageError
from trtla.formats.engine import open_engine
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.trtllm.build import adopt_engine

SEVENS = LookaheadConfig(7, 7, 7)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "config.json").write_text('{"eos_token_id": [128001, 128009]}')
    return folder


@pytest.mark.parametrize("release", RELEASES)
def test_lookahead_engines_of_every_release_open(release: str, tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "engine", release)
    engine = open_engine(folder)
    assert engine.backend == "tensorrt-llm"
    assert engine.lookahead is None
    assert engine.config.version == release
    assert engine.config.build_config.max_text_len == 2048
    with pytest.raises(UsageError, match="no readable weights"):
        engine.weights()
    if found := inspected(folder):
        assert found["problems"] == []
        assert found["backend"] == "tensorrt-llm"
        assert (found["max_draft_len"], found["lookahead"]) == (83, None)


@pytest.mark.parametrize("release", RELEASES)
def test_plain_engines_of_every_release_open(release: str, tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "engine", release, max_draft_len=0, max_beam_width=4)
    assert open_engine(folder).lookahead == AUTOREGRESSIVE
    check_triples(str(folder), None)


def test_an_engine_of_several_ranks_needs_them_all(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "engine", ranks=4)
    assert open_engine(folder).backend == "tensorrt-llm"
    (folder / "rank2.engine").unlink()
    with pytest.raises(UsageError, match=r"lacks rank2\.engine, one of 4 ranks"):
        open_engine(folder)
    (folder / "rank0.engine").unlink()
    if shown := inspected(folder):
        words = " ".join(shown["problems"]).split()
        assert [word.strip(",") for word in words if ".engine" in word] == [
            "rank0.engine",
            "rank2.engine",
        ]


def test_a_missing_token_limit_is_a_full_batch(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "engine", max_num_tokens=None)
    assert open_engine(folder).config.build_config.max_num_tokens == 32 * 2131


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"kv_cache_type": None}, "kv_cache_type is missing, which stands for a continuous"),
        ({"kv_cache_type": "CONTINUOUS"}, "kv_cache_type is CONTINUOUS, the executor needs PAGED"),
        ({"max_beam_width": 2}, "max_beam_width is 2, lookahead needs 1"),
        ({"gather_context_logits": True}, "gather_context_logits is on"),
        ({"speculative_decoding_mode": 2}, "speculative_decoding_mode is 2, neither lookahead"),
        ({"speculative_decoding_mode": 1}, "max_draft_len is 83, but speculative_decoding_mode"),
    ],
)
def test_settings_the_executor_cannot_run_are_named(
    keys: dict[str, Any], named: str, tmp_path: Path
) -> None:
    folder = write_engine(tmp_path / "engine", **keys)
    for use in (open_engine, lambda path: check_triples(str(path), SEVENS)):
        with pytest.raises(UsageError) as caught:
            use(folder)
        assert f"config.json: build_config.{named}" in caught.value.message
        assert "build it again" in str(caught.value.hint)
    if shown := inspected(folder):
        assert len([text for text in shown["problems"] if named in text]) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("gpt_attention_plugin", None), ("remove_input_padding", False), ("paged_kv_cache", False)],
)
def test_plugins_the_executor_needs_are_named(name: str, value: object, tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "engine")
    edit_plugins(folder, **{name: value})
    with pytest.raises(UsageError, match=f"plugin_config.{name} is off"):
        open_engine(folder)


def test_lookahead_engines_in_pipeline_stages_are_refused(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "engine", ranks=4, stages=2)
    uses = (
        open_engine,
        lambda path: check_triples(str(path), SEVENS),
        lambda path: adopt_engine(path, SEVENS),
    )
    for use in uses:
        with pytest.raises(UsageError, match="lookahead does not go with pp_size 2") as caught:
            use(folder)
        assert "--tp-size" in str(caught.value.hint)
    if shown := inspected(folder):
        assert [text for text in shown["problems"] if "pp_size 2" in text]
    plain = write_engine(tmp_path / "plain", max_draft_len=0, ranks=4, stages=2)
    assert open_engine(plain).lookahead == AUTOREGRESSIVE
    assert not inspected(plain).get("problems")


def test_plain_engines_in_stages_need_a_vocabulary_that_divides(tmp_path: Path) -> None:
    folder = write_engine(tmp_path / "engine", max_draft_len=0, ranks=2, stages=2)
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_config"]["vocab_size"] = 32001
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"vocab_size 32001 is padded to 32001 .* and to 32002"):
        open_engine(folder)


def test_adopting_writes_the_triple_and_the_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    folder = write_engine(tmp_path / "engine", "1.1.0")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    engine = adopt_engine(folder, SEVENS, tokenizer=tokenizer, sources={"lookahead": "flag"})
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(after) - set(before) == {"trtla.json", "tokenizer.json", "generation_config.json"}
    assert {name: after[name] for name in before} == before
    assert engine.lookahead == SEVENS
    assert engine.end_ids() == {128001, 128009}
    assert engine.manifest is not None
    assert engine.manifest.tensorrt_llm_version == "1.1.0"
    assert engine.manifest.compute_capability is None
    assert engine.manifest.source == "trtllm-build"
    assert engine.manifest.settings == {"lookahead": "flag"}
    check_triples(str(folder), None)
    assert inspected(folder).get("lookahead", [7, 7, 7]) == [7, 7, 7]


def test_adopting_twice_needs_force_and_a_plain_engine_no_triple(tmp_path: Path) -> None:
    plain = write_engine(tmp_path / "plain", max_draft_len=0)
    assert adopt_engine(plain, None).lookahead == AUTOREGRESSIVE
    folder = write_engine(tmp_path / "engine")
    adopt_engine(folder, LookaheadConfig(8, 8, 4))
    with pytest.raises(UsageError, match=r"has a trtla\.json already"):
        adopt_engine(folder, SEVENS)
    assert adopt_engine(folder, SEVENS, force=True).lookahead == SEVENS


def test_only_engines_of_tensorrt_llm_are_adopted(tmp_path: Path, tokenizer: Path) -> None:
    folder = write_engine(tmp_path / "engine")
    with pytest.raises(UsageError, match="has no tokenizer files"):
        adopt_engine(folder, SEVENS, tokenizer=folder)
    (folder / "rank0.engine").unlink()
    with pytest.raises(UsageError, match="holds no engine of TensorRT-LLM"):
        adopt_engine(folder, SEVENS)
    (tokenizer / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(UsageError, match="is a Hugging Face model, not an engine"):
        adopt_engine(tokenizer, SEVENS)
    assert not (folder / "trtla.json").exists()
    (folder / "trtla.json").write_text("{}")  # a torch engine: force would not help
    with pytest.raises(UsageError, match="holds no engine of TensorRT-LLM"):
        adopt_engine(folder, SEVENS)
