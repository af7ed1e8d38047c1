"""The trtllm-build command line that a dry run prints: what it says, and how it is quoted."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from trtla import LookaheadConfig
from trtla.build.engine import BuildDescription, describe_build
from trtla.formats.engine_limits import BuildSettings

LLAMA_8B = {
    "architecture": "LlamaForCausalLM",
    "dtype": "float16",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1},
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint's config.json alone: a dry run reads no weights."""
    folder = tmp_path / "check point"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    keys = {k: v for k, v in LLAMA_8B.items() if k not in ("architecture", "dtype", "mapping")}
    config = {**keys, "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def describe(folder: Path, settings: BuildSettings, **choice: object) -> BuildDescription:
    return describe_build(folder, settings, backend="tensorrt-llm", **choice)  # type: ignore[arg-type]


def flags(command: str) -> dict[str, str]:
    program, *parts = shlex.split(command)
    assert program == "trtllm-build"
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_a_lookahead_engine(checkpoint: Path) -> None:
    settings = BuildSettings(LookaheadConfig(7, 7, 7), max_num_tokens=1024)
    plan = describe(checkpoint, settings, output_dir="engine", workers=2)
    (command,) = plan.commands
    assert flags(command) == {
        "--checkpoint_dir": str(checkpoint),
        "--output_dir": "engine",
        "--max_batch_size": "32",
        "--max_input_len": "1024",
        "--max_seq_len": "2048",  # without the draft tokens, which build() adds
        "--max_beam_width": "1",
        "--max_num_tokens": "2688",
        "--opt_num_tokens": "2688",
        "--max_draft_len": "83",
        "--speculative_decoding_mode": "lookahead_decoding",
        "--gpt_attention_plugin": "float16",
        "--gemm_plugin": "float16",
        "--remove_input_padding": "enable",
        "--context_fmha": "enable",
        "--use_paged_context_fmha": "enable",
        "--kv_cache_type": "paged",
        "--workers": "2",
    }
    assert f"'{checkpoint}'" in command  # the folder's name has a space


def test_a_plain_engine_has_no_flags_of_speculation(checkpoint: Path) -> None:
    (command,) = describe(checkpoint, BuildSettings()).commands
    assert "draft" not in command
    assert "speculative" not in command
    gathering = BuildSettings(gather_context_logits=True)
    (command,) = describe(checkpoint, gathering).commands
    assert command.endswith(" --gather_context_logits")


@pytest.mark.parametrize(
    ("architecture", "family"), [("LlamaForCausalLM", "llama"), ("Qwen2ForCausalLM", "qwen")]
)
def test_a_hugging_face_folder_is_converted_first(
    architecture: str, family: str, model: Path
) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    plan = describe(model, BuildSettings(LookaheadConfig(4, 3, 4)), output_dir="out/engine")
    convert, build = plan.commands
    script = f"examples/models/core/{family}/convert_checkpoint.py"
    expected = f"python {script} --model_dir {model} --output_dir out/engine-checkpoint"
    assert convert == f"{expected} --dtype bfloat16"
    assert flags(build)["--checkpoint_dir"] == "out/engine-checkpoint"
    assert flags(build)["--gemm_plugin"] == "bfloat16"


def test_another_dtype_is_the_plugins_dtype(model: Path) -> None:
    convert, build = describe(model, BuildSettings(), dtype="float16").commands
    assert convert.endswith("--dtype float16")
    assert flags(build)["--gpt_attention_plugin"] == "float16"


def test_no_command_changes_a_checkpoints_dtype(checkpoint: Path) -> None:
    plan = describe(checkpoint, BuildSettings(), dtype="bfloat16")
    assert plan.commands == ()
    assert any("none changes a checkpoint's dtype" in note for note in plan.notes)


def test_a_torch_engine_has_no_such_command(checkpoint: Path) -> None:
    assert describe_build(checkpoint, BuildSettings(), backend="torch").commands == ()
