"""Engines: limits, manifest, what opening refuses, end ids, backends, and the in-memory form."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.inspected import inspected
from tests.support.models import Variant, make_model, save_model
from tests.support.tensors import equal
from trtla import LookaheadConfig
from trtla.build.convert import convert
from trtla.build.engine import build_engine, choose_backend, describe_build
from trtla.errors import UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.engine import engine_from_hugging_face, open_engine
from trtla.formats.engine_limits import BuildSettings, plan_limits
from trtla.formats.hf_config import read_hf_config
from trtla.formats.model_folder import ModelFolder
from trtla.settings.lookahead import AUTOREGRESSIVE
from trtla.trtllm import library as trtllm_library
from trtla.trtllm.library import Library

LOOKAHEAD = LookaheadConfig(7, 7, 7)
GQA = Variant("gqa", {"max_position_embeddings": 4096, "eos_token_id": [2, 5]})


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_model(make_model(GQA), GQA, tmp_path_factory.mktemp("engine") / "hf")
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def engine_dir(hf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("engine") / "engine"
    sources = {"lookahead": "flag"}
    return build_engine(hf, target, BuildSettings(LOOKAHEAD), sources=sources).path


@pytest.fixture
def copy(engine_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(engine_dir, tmp_path / "engine"))


@pytest.fixture(scope="module")
def model_config(hf: Path) -> CheckpointConfig:
    return read_hf_config(hf)[0]


def edit(path: Path, **keys: Any) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **keys}))


def test_limits_follow_tensorrt_llms_build(model_config: CheckpointConfig) -> None:
    plain = plan_limits(BuildSettings(AUTOREGRESSIVE), model_config).build_config
    assert (plain.max_seq_len, plain.max_input_len, plain.max_num_tokens) == (2048, 2048, 8192)
    assert (plain.max_draft_len, plain.speculative_decoding_mode) == (0, 1)
    compiled = plan_limits(BuildSettings(), model_config, "tensorrt-llm").build_config
    assert (compiled.max_seq_len, compiled.max_input_len) == (2048, 1024)
    engine = plan_limits(BuildSettings(LOOKAHEAD, max_batch_size=128), model_config).build_config
    assert (engine.max_draft_len, engine.speculative_decoding_mode) == (83, 8)
    assert (engine.max_seq_len, engine.max_text_len) == (2131, 2048)
    assert engine.max_num_tokens == 128 * 84
    pasted = BuildSettings(LOOKAHEAD, max_draft_len=83)
    assert plan_limits(pasted, model_config).build_config.max_draft_len == 83


def test_defaults_shrink_to_the_model(model_config: CheckpointConfig) -> None:
    short = model_config.model_copy(update={"max_position_embeddings": 512})
    build = plan_limits(BuildSettings(), short).build_config
    assert (build.max_text_len, build.max_input_len) == (512, 512)
    windows = (256, None) * (model_config.num_hidden_layers // 2)
    local = model_config.model_copy(update={"layer_windows": windows})
    assert plan_limits(BuildSettings(), local).build_config.max_text_len == 2048
    compiled = plan_limits(BuildSettings(), local, "tensorrt-llm").build_config
    assert compiled.max_text_len == 256


def test_windows_that_are_not_applied_bound_the_text(model_config: CheckpointConfig) -> None:
    local = model_config.model_copy(update={"layer_windows": (256,)})
    with pytest.raises(UsageError, match="window 256, which TensorRT-LLM's engines do not") as said:
        plan_limits(BuildSettings(max_seq_len=300), local, "tensorrt-llm")
    assert "--backend torch" in str(said.value.hint)


@pytest.mark.parametrize("windows", [(8,), (0, 8), (8, None, None)])
def test_windows_that_are_not_one_a_layer_are_refused(
    windows: tuple[int | None, ...], model_config: CheckpointConfig
) -> None:
    data = {**model_config.model_dump(), "num_hidden_layers": 2, "layer_windows": windows}
    with pytest.raises(ValueError, match="layer_windows"):
        CheckpointConfig(**data)


@pytest.mark.parametrize(
    ("keys", "triple", "note"),
    [
        ({}, (7, 7, 7), "lookahead 7,7,7 is the default of torch engines; --no-lookahead"),
        ({"max_seq_len": 8}, (7, 7, 7), "is the default"),
        ({"max_num_tokens": 768}, (4, 4, 4), "4,4,4, the largest default that fits max_num_tokens"),
        ({"max_batch_size": 500}, (3, 3, 3), "fits max_num_tokens 8192 for max_batch_size 500"),
        ({"max_num_tokens": 33}, (1, 1, 0), "no lookahead: max_num_tokens 33 for max_batch_size"),
        ({"gather_context_logits": True}, (1, 1, 0), "no lookahead: gather_context_logits"),
        ({"max_draft_len": 0}, (1, 1, 0), None),
        ({"lookahead": AUTOREGRESSIVE}, (1, 1, 0), None),
    ],
)
def test_torch_engines_have_room_for_drafts_as_far_as_limits_leave_it(
    keys: dict[str, Any], triple: tuple[int, int, int], note: str | None, model_config: Any
) -> None:
    planned = plan_limits(BuildSettings(**keys), model_config)
    assert planned.lookahead.as_tuple() == triple
    assert planned.build_config.max_draft_len == planned.lookahead.max_draft_len
    assert planned.build_config.max_num_tokens == keys.get("max_num_tokens", 8192)
    assert (note in planned.notes[0]) if note else planned.notes == ()
    compiled = plan_limits(BuildSettings(**keys), model_config, "tensorrt-llm")
    assert compiled.lookahead == AUTOREGRESSIVE
    assert not any("lookahead" in sentence for sentence in compiled.notes)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"max_seq_len": 5000}, "max_seq_len 5000 is above the 4096 positions of the model"),
        ({"max_input_len": 200, "max_seq_len": 100}, "max_input_len 200 is above max_seq_len 100"),
        ({"max_draft_len": 82}, "max_draft_len 82 disagrees with lookahead 7,7,7"),
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"max_num_tokens": -1}, "max_num_tokens is -1"),
        ({"max_input_len": 0}, "max_input_len is 0"),
        ({"lookahead": LookaheadConfig(99, 99, 99)}, "99,99,99 feeds 19404 tokens in every step"),
    ],
)
def test_limits_that_contradict_are_refused(
    keys: dict[str, Any], named: str, model_config: CheckpointConfig
) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        plan_limits(replace(BuildSettings(LOOKAHEAD), **keys), model_config)
    assert "--" in str(caught.value.hint)


def test_an_engine_tells_all_about_itself(engine_dir: Path) -> None:
    engine = open_engine(engine_dir)
    assert engine.backend == "torch"
    assert engine.lookahead == LOOKAHEAD
    assert engine.tokenizer_dir == engine_dir
    assert engine.end_ids() == {2, 5}
    assert engine.name == str(engine_dir)
    assert engine.manifest is not None
    assert engine.manifest.settings == {"lookahead": "flag"}
    assert engine.manifest.dtype == "float16"
    names = [name for name, _ in engine.weights()]
    assert names[0] == "transformer.vocab_embedding.weight"
    assert names[-1] == "lm_head.weight"
    assert {path.name for path in engine_dir.iterdir()} == {
        "config.json",
        "trtla.json",
        "rank0.safetensors",
        "tokenizer.json",
        "generation_config.json",
    }


def test_an_engine_in_memory_equals_the_built_one(hf: Path, engine_dir: Path) -> None:
    before = sorted(hf.iterdir())
    settings = BuildSettings(LOOKAHEAD, max_seq_len=2048)
    memory = engine_from_hugging_face(hf, settings, dtype="float16")
    built = open_engine(engine_dir)
    for (name, tensor), (other, expected) in zip(memory.weights(), built.weights(), strict=True):
        assert name == other
        assert equal(tensor, expected)
    assert memory.config.build_config == built.config.build_config
    assert memory.lookahead == LOOKAHEAD
    assert memory.backend == "torch"
    assert memory.end_ids() == {2, 5}
    assert memory.tokenizer_dir == hf
    assert sorted(hf.iterdir()) == before


def test_a_plain_engine_has_the_autoregressive_triple(hf: Path, tmp_path: Path) -> None:
    engine = build_engine(hf, tmp_path / "engine", BuildSettings(AUTOREGRESSIVE))
    assert engine.lookahead == AUTOREGRESSIVE
    (tmp_path / "engine" / "trtla.json").unlink()
    assert open_engine(tmp_path / "engine").lookahead == AUTOREGRESSIVE


def test_other_folders_are_told_what_they_are(hf: Path, tmp_path: Path) -> None:
    convert(hf, tmp_path / "ckpt")
    for folder, kind in ((hf, "Hugging Face model"), (tmp_path / "ckpt", "checkpoint")):
        with pytest.raises(UsageError, match=f"is a {kind}, not an engine") as caught:
            open_engine(folder)
        assert f"trtla build --checkpoint-dir {folder}" in str(caught.value.hint)
    with pytest.raises(UsageError, match="has no config"):
        open_engine(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        open_engine(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"format_version": 2}, "format_version 2"),
        ({"lookahead": [5, 5, 5]}, "needs max_draft_len 39, config.json says 83"),
        ({"lookahead": [0, 7, 7]}, "window=0 is below 1"),
        ({"dtype": "bfloat16"}, "dtype is bfloat16"),
        ({"odd": 1}, 'unknown key "odd"'),
        ({"backend": "cuda"}, "'cuda'"),
        ({"source_sha256": "x"}, "source_sha256"),
    ],
)
def test_a_wrong_manifest_is_refused(keys: dict[str, Any], named: str, copy: Path) -> None:
    edit(copy / "trtla.json", **keys)
    with pytest.raises(UsageError) as caught:
        open_engine(copy)
    assert named in caught.value.message
    assert caught.value.hint
    if shown := inspected(copy):
        assert any(named in problem for problem in shown["problems"])


def test_wrong_weights_are_refused_and_inspect_lists_all(copy: Path) -> None:
    path = copy / "rank0.safetensors"
    data = load_file(path)
    data["odd"] = data.pop("transformer.ln_f.weight")
    save_file(data, path)
    with pytest.raises(UsageError, match=r"lacks tensor transformer\.ln_f\.weight"):
        open_engine(copy)
    if shown := inspected(copy):
        assert len(shown["problems"]) == 2
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UsageError, match="is truncated"):
        open_engine(copy)
    path.unlink()
    with pytest.raises(UsageError, match=r"rank0\.safetensors does not exist"):
        open_engine(copy)


def test_weights_cut_after_opening_are_named(copy: Path) -> None:
    engine = open_engine(copy)
    path = copy / "rank0.safetensors"
    weights = engine.weights()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UsageError, match="has changed while it was read"):
        list(weights)


def test_auto_takes_tensorrt_llm_where_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found, probed = Library("1.2.1"), []
    monkeypatch.setattr(trtllm_library, "installed", lambda: False)
    monkeypatch.setattr(trtllm_library, "probe", lambda: probed.append(True) or found)
    assert choose_backend("auto") == ("torch", "TensorRT-LLM is not installed")
    monkeypatch.setattr(trtllm_library, "installed", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_backend("auto") == (
        "torch",
        "TensorRT-LLM is installed, but there is no CUDA GPU",
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert choose_backend("auto") == (
        "torch",
        "TensorRT-LLM has no lookahead on this GPU: compute capability 7.5 is below 8.0",
    )
    assert not probed  # nothing was imported for these
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert choose_backend("auto") == (
        "tensorrt-llm",
        "TensorRT-LLM is installed and the GPU has compute capability 9.0",
    )
    with pytest.raises(UsageError, match="'cuda'"):
        choose_backend("cuda")


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (
            Library("1.4.0", missing=("the module tensorrt_llm.builder",)),
            "TensorRT-LLM 1.4.0 lacks the module tensorrt_llm.builder",
        ),
        (
            Library("1.2.1", failure="ImportError: libnvinfer.so.10"),
            "TensorRT-LLM 1.2.1 cannot be imported: ImportError: libnvinfer.so.10",
        ),
    ],
)
def test_auto_takes_torch_where_tensorrt_llm_cannot_build(
    library: Library, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trtllm_library, "installed", lambda: True)
    monkeypatch.setattr(trtllm_library, "probe", lambda: library)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert choose_backend("auto") == ("torch", reason)


@pytest.mark.parametrize("split", [False, True])
def test_a_dry_run_tells_what_a_build_writes(split: bool, hf: Path, tmp_path: Path) -> None:
    source = convert(hf, tmp_path / "ckpt", tp_size=2) if split else hf
    plan = describe_build(source, BuildSettings(LOOKAHEAD, max_batch_size=3))
    engine = build_engine(source, tmp_path / "engine", BuildSettings(LOOKAHEAD, max_batch_size=3))
    assert plan.build_config == engine.config.build_config
    assert plan.dtype == engine.config.pretrained_config.dtype
    written = {path.name for path in engine.path.iterdir()}
    assert set(plan.files) == written  # and weights as this processor reads them
    assert plan.memory.weight_bytes == sum(t.size * 2 for _, t in engine.weights())
    # keys and values, 2 layers, 2 heads of 16, 2 bytes
    assert plan.memory.kv_cache_bytes == 2 * 2 * 2 * 16 * 2 * 3 * 2131
    assert plan.max_draft_len == 83


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, set()),
        ({"generation_config.json": {"eos_token_id": 3}}, {3}),
        ({"generation_config.json": {"eos_token_id": [3, 4]}}, {3, 4}),
        (
            {"generation_config.json": {"eos_token_id": None}, "config.json": {"eos_token_id": 9}},
            {9},
        ),
        ({"generation_config.json": [], "config.json": {"eos_token_id": "x"}}, set()),
        (
            {
                "tokenizer_config.json": {
                    "eos_token": {"content": "</s>"},
                    "added_tokens_decoder": {"7": {"content": "</s>"}, "x": 1},
                }
            },
            {7},
        ),
        (
            {
                "tokenizer_config.json": {"eos_token": "<end>"},
                "tokenizer.json": {"added_tokens": [{"id": 8, "content": "<end>"}]},
            },
            {8},
        ),
    ],
)
def test_end_ids_are_found_wherever_they_are(
    files: dict[str, Any], expected: set[int], tmp_path: Path, engine_dir: Path
) -> None:
    for name, data in files.items():
        (tmp_path / name).write_text(json.dumps(data))
    engine = replace(open_engine(engine_dir), folder=ModelFolder(tmp_path))
    assert engine.end_ids() == expected
