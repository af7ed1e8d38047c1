"""The stand-in's checkpoint loader, builder, engine folder and trtllm-build."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import standin_engines
from tests.support.standin import Standin

pytestmark = [
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


def test_a_checkpoint_with_a_missing_tensor_is_refused(standin: Standin, checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.pop(QKV))
    with pytest.raises(RuntimeError, match=f"Required but not provided tensors:.*{QKV}"):
        load(standin, checkpoint)


def test_an_extra_tensor_is_a_warning_on_stdout(
    standin: Standin, checkpoint: Path, capsys: Any
) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.update(extra=torch.ones(1)))
    load(standin, checkpoint)
    assert "Provided but not required tensors: {'extra'}" in capsys.readouterr().out


def test_wrong_shapes_and_types_are_refused(standin: Standin, checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.update({QKV: tensors[QKV][1:]}))
    with pytest.raises(AssertionError, match="not the same shape"):
        load(standin, checkpoint)
    change_tensors(checkpoint, lambda t: t.update({QKV: torch.zeros(256, 128)}))
    with pytest.raises(AssertionError, match=r"initialized as torch\.float16 but set"):
        load(standin, checkpoint)


def test_a_rank_without_file_is_refused(standin: Standin, tiny_checkpoint_tp2_pp2: Path) -> None:
    assert load(standin, tiny_checkpoint_tp2_pp2, rank=3).config.mapping.pp_rank == 1
    with pytest.raises(ValueError, match="between 0 and 3"):
        load(standin, tiny_checkpoint_tp2_pp2, rank=4)


def test_ranks_need_their_own_part_alone(standin: Standin, tiny_checkpoint_tp2_pp2: Path) -> None:
    first = load(standin, tiny_checkpoint_tp2_pp2, rank=0).tensors
    last = load(standin, tiny_checkpoint_tp2_pp2, rank=3).tensors
    assert first[QKV].shape == (3 * 64, 128), "the one K/V head is on both ranks"
    assert "lm_head.weight" not in first
    assert last["lm_head.weight"].shape == (130, 128)
    assert "transformer.vocab_embedding.weight" not in last
    assert not any(name.startswith("transformer.layers.1") for name in last)


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


def test_speculation_makes_room_for_drafts(standin: Standin, tiny_checkpoint: Path) -> None:
    config = build(standin, tiny_checkpoint, **LOOKAHEAD, max_seq_len=128).config.build_config
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


@pytest.mark.parametrize("standin", ["0.20.0", "1.0.0", "1.1.0", "1.2.1"], indirect=True)
def test_the_engine_folder(standin: Standin, tiny_checkpoint_tp2_pp2: Path, tmp_path: Path) -> None:
    builder = standin.load("builder")
    for rank in (3, 0):
        model = load(standin, tiny_checkpoint_tp2_pp2, rank=rank)
        builder.build(model, builder.BuildConfig(**LOOKAHEAD, max_batch_size=4)).save(tmp_path)
        assert (tmp_path / "config.json").exists() == (rank == 0), "rank 0 writes it"
    assert (tmp_path / "rank3.engine").stat().st_size > 1000
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.keys() == {"version", "pretrained_config", "build_config"}
    assert config["version"] == standin.version
    built, mapping = config["build_config"], config["pretrained_config"]["mapping"]
    assert built["speculative_decoding_mode"] == 8
    assert built["max_draft_len"] == 23
    assert built["kv_cache_type"] == "PAGED"
    assert built["plugin_config"]["tokens_per_block"] == 32
    assert built["plugin_config"]["use_paged_context_fmha"] is True
    assert not {"dry_run", "visualize_network"} & built.keys()
    assert "rank" not in mapping
    assert (mapping["world_size"], mapping["tp_size"], mapping["pp_size"]) == (4, 2, 2)
    assert builder.Engine.from_dir(tmp_path, 3).config.pretrained_config.mapping.rank == 3


@pytest.mark.parametrize(
    ("fake_gpu", "changes", "text"),
    [
        ("10.0", {}, "TRTLLM-GEN does not support Speculative decoding"),
        ("7.5", {}, "No available XQA kernels"),
    ],
    indirect=["fake_gpu"],
)
def test_gpus_without_kernels_are_refused(
    standin: Standin, checkpoint: Path, changes: Any, text: str
) -> None:
    with pytest.raises(RuntimeError, match=text):
        build(standin, checkpoint, **LOOKAHEAD)
    assert build(standin, checkpoint).engine, "without lookahead it can be built"


@pytest.mark.parametrize(
    ("standin", "size", "works"), [("1.1.0", 32, False), ("1.2.1", 32, True)], indirect=["standin"]
)
def test_other_head_sizes_have_kernels_in_late_releases_only(
    standin: Standin, checkpoint: Path, size: int, works: bool
) -> None:
    change_config(checkpoint, num_attention_heads=4, num_key_value_heads=2, head_size=size)
    if works:
        assert build(standin, checkpoint, **LOOKAHEAD).engine
        return
    with pytest.raises(RuntimeError, match="No available XQA kernels"):
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


@pytest.mark.parametrize(
    ("standin", "warns"), [("1.1.0", False), ("1.2.1", True)], indirect=["standin"]
)
def test_late_releases_call_the_workflow_deprecated(
    standin: Standin, tiny_checkpoint: Path, warns: bool, recwarn: Any
) -> None:
    build(standin, tiny_checkpoint)
    messages = [str(w.message) for w in recwarn if w.category is FutureWarning]
    assert any("DEPRECATION WARNING" in message for message in messages) == warns


def quantise(tensors: dict[str, torch.Tensor], *, fp8: bool) -> None:
    """Per-tensor FP8 as TensorRT-LLM stores it, or the values it stands for, in float16."""
    for name in [n for n in tensors if n.endswith((".qkv.weight", ".dense.weight"))]:
        scale = 2.0 ** torch.ceil(torch.log2(tensors[name].float().abs().max() / 448))
        stored = (tensors[name].float() / scale).to(torch.float8_e4m3fn)
        tensors[name] = stored.view(torch.int8) if fp8 else (stored.float() * scale).half()
        if fp8:
            for kind in ("weights", "activation"):
                factor = name.replace("weight", f"{kind}_scaling_factor")
                tensors[factor] = scale.reshape(1).clone()
            if "qkv" in name:
                cache = name.replace("qkv.weight", "kv_cache_scaling_factor")
                tensors[cache] = torch.ones(1)


def test_fp8_is_loaded_and_multiplied_out(
    standin: Standin, checkpoint: Path, tmp_path: Path
) -> None:
    expected = Path(shutil.copytree(checkpoint, tmp_path / "expected"))
    change_tensors(expected, lambda tensors: quantise(tensors, fp8=False))
    change_tensors(checkpoint, lambda tensors: quantise(tensors, fp8=True))
    algorithms = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    excluded = ["lm_head", "*.mlp.*"]
    with pytest.raises((RuntimeError, AssertionError)):
        load(standin, checkpoint)
    change_config(checkpoint, quantization={**algorithms, "exclude_modules": ["lm_head"]})
    with pytest.raises(RuntimeError, match=r"mlp\.fc\.weights_scaling_factor"):
        load(standin, checkpoint)
    change_config(checkpoint, quantization={**algorithms, "exclude_modules": excluded})
    texts = []
    for folder in (checkpoint, expected):
        engine = standin_engines.build(standin, folder, tmp_path / f"{folder.name}-engine")
        executor = standin_engines.open_executor(standin, engine)
        answers = standin_engines.drain(executor, standin_engines.asker(standin)(length=24))
        texts.append(standin_engines.tokens(answers[1]))
    assert texts[0] == texts[1]
    config = build(standin, checkpoint).config.build_config
    assert config.plugin_config.use_fp8_context_fmha is True


@pytest.mark.parametrize("fake_gpu", ["8.0"], indirect=True)
def test_fp8_needs_ada_or_hopper(standin: Standin, checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda tensors: quantise(tensors, fp8=True))
    excluded = ["lm_head", "*.mlp.*"]
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": excluded}
    change_config(checkpoint, quantization=quantization)
    with pytest.raises(RuntimeError, match="FP8 is not supported on SM 80"):
        build(standin, checkpoint)


def trtllm_build(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["trtllm-build", *flags], capture_output=True, text=True)


@pytest.mark.usefixtures("standin")
def test_trtllm_build_writes_the_same_folder(
    standin: Standin, tiny_checkpoint_tp2_pp2: Path, tmp_path: Path
) -> None:
    done = trtllm_build(
        "--checkpoint_dir", str(tiny_checkpoint_tp2_pp2), "--output_dir", str(tmp_path / "engine"),
        "--max_batch_size", "4", "--max_seq_len", "128", "--max_draft_len", "23",
        "--speculative_decoding_mode", "lookahead_decoding", "--gemm_plugin", "auto",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Increasing max_seq_len (128) by max_draft_len (23)" in done.stdout
    assert sorted(p.name for p in (tmp_path / "engine").iterdir()) == [
        "config.json", "rank0.engine", "rank1.engine", "rank2.engine", "rank3.engine",
    ]  # fmt: skip
    builder = standin.load("builder")
    config = builder.BuildConfig(**LOOKAHEAD, max_batch_size=4, max_seq_len=128)
    config.plugin_config.gemm_plugin = "auto"
    builder.build(load(standin, tiny_checkpoint_tp2_pp2, rank=0), config).save(tmp_path / "api")
    texts = [(tmp_path / name / "config.json").read_text() for name in ("engine", "api")]
    assert json.loads(texts[0]) == json.loads(texts[1])


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
    done = trtllm_build("--checkpoint_dir", "x", *flags)
    assert done.returncode != 0
    assert text in done.stderr


@pytest.mark.parametrize("standin", ["1.3.0rc15"], indirect=True)
def test_trtllm_build_is_gone_after_the_removal(standin: Standin) -> None:
    assert shutil.which("trtllm-build") is None
    program = Path(__file__).parent / "standin" / "bin" / "trtllm-build"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert (done.returncode, "command removed" in done.stderr) == (1, True), standin.version
