"""TensorRT-LLM's command lines on the stand-in: its parser, its settings, triples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import Ran, refused, trtla
from tests.support.standin import Standin
from trtla.cli.commands import COMMANDS

pytestmark = pytest.mark.usefixtures("standin", "fake_gpu")


def test_the_table_has_every_option_of_trtllm_build(standin: Standin) -> None:
    parser = standin.load("commands.build").parse_arguments()
    theirs = {name for action in parser._actions for name in action.option_strings}
    ours = {name.replace("-", "_") for param in COMMANDS["build"].params for name in param.opts}
    theirs = {name.replace("-", "_") for name in theirs}
    assert theirs - ours == {"_h", "__help"}


@pytest.fixture
def by_length(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """An engine that is built as TensorRT-LLM's example has it."""
    folder = tmp_path / "en"
    ran = trtla(
        "build", f"--checkpoint_dir={tiny_checkpoint}", f"--output_dir={folder}",
        "--gpt_attention_plugin=float16", "--gemm_plugin=float16", "--max_batch_size=4",
        "--max_input_len=64", "--max_seq_len=128", "--max_beam_width=1", "--log_level=error",
        "--max_draft_len=83", "--speculative_decoding_mode=lookahead_decoding",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "backend tensorrt-llm" in ran.out
    return folder


def run(engine: Path, tokenizer: Path, *asked: str) -> Ran:
    named = (f"--engine_dir={engine}", f"--tokenizer_dir={tokenizer}", "--max_output_len=8")
    return trtla("run", *named, *asked, "--input_text", "abcdefghijklmnopqrstuvwxyz", "--json")


def test_the_builder_gets_what_is_passed_on(by_length: Path) -> None:
    written = json.loads((by_length / "config.json").read_text())["build_config"]
    assert written["plugin_config"]["gemm_plugin"] == "float16"
    assert (written["max_draft_len"], written["speculative_decoding_mode"]) == (83, 8)


@pytest.mark.parametrize("triple", ["[7,7,7]", "[3,15,3]", "[14,4,14]"])
def test_the_server_chooses_the_triple(by_length: Path, tiny_model: Path, triple: str) -> None:
    ran = run(by_length, tiny_model, f"--lookahead_config={triple}")
    assert ran.code == 0, ran.err
    assert ran.json["results"][0]["lookahead"] == json.loads(triple)


def test_a_triple_of_another_length_is_refused(by_length: Path) -> None:
    ran = trtla("run", by_length, "ab", "--lookahead_config=[5,5,5]")
    refused(ran, 2, "lookahead 5,5,5 needs max_draft_len 39")


def test_the_executor_gets_what_is_passed_on(by_length: Path, tiny_model: Path) -> None:
    asked = ("--multi_block_mode", "false", "--cuda_graph_mode", "--max_attention_window_size")
    ran = run(by_length, tiny_model, *asked, "128", "--max_tokens_in_paged_kv_cache=4096")
    assert ran.code == 0, ran.err
    assert "no effect" not in ran.err
