"""The stand-in's checkpoint loader, builder, engine folder and trtllm-build."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import standin_engines
from tests.support.standin import Standin
from tests.support.unchanged import STAND_IN_SOURCES
from trtla.build.convert import convert
from trtla.build.quantize import Calibration

pytestmark = [
    STAND_IN_SOURCES,
    pytest.mark.deep,
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
LOOKAHEAD = {"speculative_decoding_mode": 8, "max_draft_len": 23}
QKV = "transformer.layers.0.attention.qkv.weight"


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))


def change_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def change_tensors(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "rank0.safetensors")
    change(tensors)
    save_file({k: t.contiguous() for k, t in tensors.items()}, folder / "rank0.safetensors")


def load(standin: Standin, folder: Path, **given: Any) -> Any:
    return standin.load("models").LLaMAForCausalLM.from_checkpoint(folder, **given)


def build(standin: Standin, folder: Path, **values: Any) -> Any:
    builder = standin.load("builder")
    return builder.build(load(standin, folder), builder.BuildConfig(**values))


def test_tensors_are_those_that_a_rank_needs(
    standin: Standin, checkpoint: Path, capsys: Any
) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.update(extra=torch.ones(1)))
    load(standin, checkpoint)
    assert "Provided but not required tensors: {'extra'}" in capsys.readouterr().out
    change_tensors(checkpoint, lambda tensors: tensors.update({QKV: tensors[QKV][1:]}))
    with pytest.raises(AssertionError, match="not the same shape"):
        load(standin, checkpoint)
    change_tensors(checkpoint, lambda t: t.update({QKV: torch.zeros(256, 128)}))
    with pytest.raises(AssertionError, match=r"initialized as torch\.float16 but set"):
        load(standin, checkpoint)
    change_tensors(checkpoint, lambda tensors: tensors.pop(QKV))
    with pytest.raises(RuntimeError, match=f"Required but not provided tensors:.*{QKV}"):
        load(standin, checkpoint)


def test_ranks_need_their_own_part_alone(standin: Standin, tiny_checkpoint_tp2_pp2: Path) -> None:
    first, last = (load(standin, tiny_checkpoint_tp2_pp2, rank=rank).tensors for rank in (0, 3))
    assert first[QKV].shape == (3 * 64, 128), "the one K/V head is on both ranks"
    assert "lm_head.weight" not in first
    assert last["lm_head.weight"].shape == (130, 128)
    assert "transformer.vocab_embedding.weight" not in last
    assert not any(name.startswith("transformer.layers.1") for name in last)
    with pytest.raises(ValueError, match="between 0 and 3"):
        load(standin, tiny_checkpoint_tp2_pp2, rank=4)


@pytest.mark.parametrize("key", ["architecture", "dtype", "vocab_size", "hidden_act"])
def test_required_keys_are_required(standin: Standin, checkpoint: Path, key: str) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    del config[key]
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises((TypeError, AssertionError)):
        load(standin, checkpoint)


def test_unknown_keys_are_fine_outside_mapping_and_quantization(
    standin: Standin, checkpoint: Path, capsys: Any
) -> None:
    change_config(checkpoint, brand_new=1)
    assert load(standin, checkpoint).config.brand_new == 1
    assert "Implicitly setting LLaMAConfig.brand_new = 1" in capsys.readouterr().out
    for part in ("mapping", "quantization"):
        change_config(checkpoint, **{part: {"brand_new": 1}})
        with pytest.raises(TypeError, match="brand_new"):
            load(standin, checkpoint)
        change_config(checkpoint, **{part: None})


def test_speculation_makes_room_for_drafts(
    standin: Standin, tiny_checkpoint: Path, capsys: Any
) -> None:
    config = build(standin, tiny_checkpoint, **LOOKAHEAD, max_seq_len=128).config.build_config
    assert "Increasing max_seq_len (128) by max_draft_len (23)" in capsys.readouterr().out
    assert config.max_seq_len == 128 + 23
    assert config.max_num_tokens == 2048 * 24, "the default batch of 2048, 24 tokens each"
    config = build(standin, tiny_checkpoint, **LOOKAHEAD, max_batch_size=4).config.build_config
    assert config.max_seq_len == 512 + 23
    assert config.max_num_tokens == 4 * 512, "no more than a full batch"
    plain = build(standin, tiny_checkpoint, max_seq_len=128).config.build_config
    assert (plain.max_seq_len, plain.max_num_tokens, plain.max_input_len) == (128, 8192, 128)


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({"max_num_tokens": 9999}, (512, 4)),
        ({"max_num_tokens": 9999, "opt_num_tokens": 96}, (512, 96)),
        ({"max_num_tokens": 9}, (32, 4)),
    ],
)
def test_token_limits_are_corrected(
    standin: Standin, tiny_checkpoint: Path, given: Any, tokens: tuple[int, int]
) -> None:
    built = build(standin, tiny_checkpoint, max_batch_size=4, max_seq_len=128, **given)
    config = built.config.build_config
    assert (config.max_num_tokens, config.opt_num_tokens) == tokens


@pytest.mark.parametrize(
    ("standin", "builds"),
    [("0.20.0", True), ("1.0.0", True), ("1.1.0", False), ("1.2.1", False)],
    indirect=["standin"],
)
def test_dynamic_rope_lacks_a_key_in_late_releases(
    standin: Standin, checkpoint: Path, builds: bool
) -> None:
    change_config(checkpoint, rotary_scaling={"type": "dynamic", "factor": 2.0})
    if builds:
        assert build(standin, checkpoint).engine
        return
    with pytest.raises(KeyError, match="alpha"):
        build(standin, checkpoint)


def test_the_given_configuration_is_not_changed(standin: Standin, tiny_checkpoint: Path) -> None:
    builder = standin.load("builder")
    config = builder.BuildConfig(**LOOKAHEAD)
    config.plugin_config.gemm_plugin = "auto"
    built = builder.build(load(standin, tiny_checkpoint), config).config.build_config
    assert (config.max_seq_len, config.max_num_tokens) == (None, 8192)
    assert config.plugin_config.paged_kv_cache is None
    assert built.plugin_config.paged_kv_cache is True
    assert built.plugin_config.use_fp8_context_fmha is False
    assert (built.plugin_config.dtype, built.plugin_config.gemm_plugin) == ("float16", "float16")


def test_the_engine_folder(standin: Standin, tiny_checkpoint_tp2_pp2: Path, tmp_path: Path) -> None:
    builder = standin.load("builder")
    for rank in (3, 0):
        model = load(standin, tiny_checkpoint_tp2_pp2, rank=rank)
        builder.build(model, builder.BuildConfig(**LOOKAHEAD, max_batch_size=4)).save(tmp_path)
        assert (tmp_path / "config.json").exists() == (rank == 0), "rank 0 writes it"
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.keys() == {"version", "pretrained_config", "build_config"}
    built, mapping = config["build_config"], config["pretrained_config"]["mapping"]
    assert (built["speculative_decoding_mode"], built["kv_cache_type"]) == (8, "PAGED")
    assert built["plugin_config"]["use_paged_context_fmha"] is True
    assert not {"dry_run", "visualize_network"} & built.keys()
    assert "rank" not in mapping
    assert (mapping["world_size"], mapping["tp_size"], mapping["pp_size"]) == (4, 2, 2)


SMALL = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_size": 32}


@pytest.mark.parametrize(
    ("fake_gpu", "standin", "changes", "text"),
    [
        ("10.0", "1.2.1", {}, "TRTLLM-GEN does not support Speculative decoding"),
        ("7.5", "1.2.1", {}, "No available XQA kernels"),
        ("9.0", "1.1.0", SMALL, "No available XQA kernels"),
        ("9.0", "1.2.1", SMALL, None),
    ],
    indirect=["fake_gpu", "standin"],
)
def test_lookahead_needs_kernels(
    standin: Standin, checkpoint: Path, changes: Any, text: str | None
) -> None:
    change_config(checkpoint, **changes)
    assert build(standin, checkpoint).engine, "without lookahead it can be built"
    if text is None:
        assert build(standin, checkpoint, **LOOKAHEAD).engine
        return
    with pytest.raises(RuntimeError, match=text):
        build(standin, checkpoint, **LOOKAHEAD)


def test_a_contradiction_about_the_cache_is_refused(
    standin: Standin, tiny_checkpoint: Path
) -> None:
    kinds = standin.load("bindings").KVCacheType
    builder = standin.load("builder")
    config = builder.BuildConfig(kv_cache_type=kinds.CONTINUOUS)
    config.plugin_config.paged_kv_cache = True
    with pytest.raises(AssertionError):
        builder.build(load(standin, tiny_checkpoint), config)


@pytest.fixture(scope="module")
def fp8_checkpoint(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, calibration = tmp_path_factory.mktemp("fp8") / "fp8", Calibration([list(range(40))])
    convert(tiny_model, folder, calibration=calibration, fp8_kv_cache=True)
    return folder


@pytest.mark.parametrize("fake_gpu", ["8.0"], indirect=True)
def test_fp8_needs_ada_or_hopper_its_scales_and_its_key(
    standin: Standin, fp8_checkpoint: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(fp8_checkpoint, tmp_path / "fp8"))
    with pytest.raises(RuntimeError, match="FP8 is not supported on SM 80"):
        build(standin, source)
    scale = "transformer.layers.0.mlp.fc.weights_scaling_factor"
    change_tensors(source, lambda tensors: tensors.pop(scale))
    with pytest.raises(RuntimeError, match=scale):
        load(standin, source)
    change_config(source, quantization=None)
    with pytest.raises(AssertionError, match=r"initialized as torch\.float16 but set"):
        load(standin, source)


def test_fp8_weights_give_the_text_of_their_numbers(
    standin: Standin, fp8_checkpoint: Path, checkpoint: Path, tmp_path: Path
) -> None:
    stored = load_file(fp8_checkpoint / "rank0.safetensors")

    def multiply_out(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            if (scale := stored.get(f"{name}s_scaling_factor")) is not None:
                tensors[name] = (stored[name].view(torch.float8_e4m3fn).float() * scale).half()

    change_tensors(checkpoint, multiply_out)
    texts = []
    for folder in (fp8_checkpoint, checkpoint):
        engine = standin_engines.build(standin, folder, tmp_path / f"{folder.name}-engine")
        executor = standin_engines.open_executor(standin, engine)
        answers = standin_engines.drain(executor, standin_engines.asker(standin)(length=24))
        texts.append(standin_engines.tokens(answers[1]))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("standin", "warns"), [("1.1.0", False), ("1.2.1", True)], indirect=["standin"]
)
def test_releases_from_1_2_on_call_the_workflow_deprecated(
    standin: Standin, tiny_checkpoint: Path, warns: bool
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build(standin, tiny_checkpoint)
    texts = [str(w.message) for w in caught if issubclass(w.category, FutureWarning)]
    for caller in ("LLaMAForCausalLM.from_checkpoint", "builder.build()"):
        assert any(f"DEPRECATION WARNING: {caller}" in text for text in texts) == warns


@pytest.mark.usefixtures("standin")
@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--no_such_flag",), "unrecognized arguments"),
        (("--speculative_decoding_mode", "lookahead"), "invalid choice"),
        (("--gather_context_logits", "--max_draft_len", "23"), "Gather context logits is not"),
    ],
)
def test_trtllm_build_refuses(flags: tuple[str, ...], text: str) -> None:
    command = ["trtllm-build", "--checkpoint_dir", "x", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert text in done.stderr


@pytest.mark.parametrize("standin", ["1.3.0rc21"], indirect=True)
def test_trtllm_build_is_gone_after_the_removal(standin: Standin) -> None:
    assert shutil.which("trtllm-build") is None
    program = Path(__file__).parent / "standin" / "bin" / "trtllm-build"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert (done.returncode, "command removed" in done.stderr) == (1, True), standin.version
