"""`trtla convert` to fp8 and integers: flags, calibration data, output, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.command import Ran, process, refused, trtla
from tests.support.inspected import inspected
from tests.support.models import Variant, byte_model, make_model, save_model
from tests.support.tokenizers import save_byte_tokenizer

TEXT = "Half a league, half a league, half a league onward. " * 100


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text(TEXT)
    return path


def convert(model: Path, target: Path, *args: str | Path, env: dict[str, str] | None = None) -> Ran:
    return trtla("convert", "--model-dir", model, "--output-dir", target, *args, env=env)


def test_fp8_from_a_text_file_to_text(model: Path, data: Path, tmp_path: Path) -> None:
    target = tmp_path / "ckpt"
    ran = convert(model, target, "--dtype", "fp8", "--kv_cache_dtype", "fp8", "--calib-data", data)
    assert ran.code == 0, ran.err
    assert ran.out == f"wrote {target}: 1 rank\n"
    assert "calibrate: 3 of 3 texts" in ran.err
    config = json.loads((target / "config.json").read_text())
    assert config["quantization"]["kv_cache_quant_algo"] == "FP8"
    folder = tmp_path / "engine"
    ran = trtla("build", "--checkpoint-dir", target, "--output-dir", folder, "--lookahead", "3,3,3")
    assert ran.code == 0, ran.err
    ran = trtla("run", "--engine-dir", folder, "--input-text", "Half", "--dtype", "float32")
    assert ran.code == 0, ran.err
    assert "float32, FP8 weights dequantised at load, FP8 K/V cache" in ran.err
    assert not inspected(folder).get("problems")


def test_fp8_has_a_base_type(model: Path, data: Path, tmp_path: Path) -> None:
    texts = ("--calib_dataset", data)
    names = ("--dtype", "bfloat16", "--use_fp8", "--fp8_kv_cache")
    assert convert(model, tmp_path / "ckpt", *names, *texts).code == 0
    config = json.loads((tmp_path / "ckpt/config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert config["quantization"]["quant_algo"] == "FP8"
    assert config["quantization"]["kv_cache_quant_algo"] == "FP8"
    assert convert(model, tmp_path / "short", "--dtype", "fp8", *texts).code == 0
    assert convert(model, tmp_path / "both", "--use-fp8", *texts).code == 0
    for name in ("config.json", "rank0.safetensors"):
        assert (tmp_path / "short" / name).read_bytes() == (tmp_path / "both" / name).read_bytes()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_integers_to_text(dtype: str, model: Path, data: Path, tmp_path: Path) -> None:
    ran = convert(model, tmp_path / "ckpt", "--dtype", dtype, "--group-size", "32")
    assert ran.code == 0, ran.err
    assert "calibrate" not in ran.err
    ran = convert(model, tmp_path / "seen", "--dtype", dtype, "--calib-data", data)
    assert "calibrate: 3 of 3 texts" in ran.err
    stored = [(tmp_path / name / "rank0.safetensors").read_bytes() for name in ("ckpt", "seen")]
    assert len(stored[0]) == len(stored[1])
    assert stored[0] != stored[1]
    folder = tmp_path / "engine"
    ran = trtla("build", "--checkpoint-dir", tmp_path / "ckpt", "--output-dir", folder)
    assert ran.code == 0, ran.err
    assert trtla("run", "--engine-dir", folder, "--input-text", "Half").code == 0
    names = "Q8_0" if dtype == "int8" else "Q4_0, Q8_0"
    if shown := inspected(folder):
        assert shown["weight_types"]["Q8_0"]["bits_per_weight"] == 8.5
    asked = ("run", "--engine-dir", folder, "--input-text", "Half", "--dtype", "float32")
    ran = trtla(*asked, env={"TRTLA_COMPILED": "0"})
    assert f"float32, {names} weights dequantised at load" in ran.err


@pytest.mark.parametrize("dtype", ["w4a16_awq", "w8a16", "w4a16"])
def test_integers_for_tensorrt_llm(
    dtype: str, tmp_path_factory: pytest.TempPathFactory, data: Path
) -> None:
    folder = tmp_path_factory.mktemp("integers")
    keys = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "vocab_size": 300}
    sizes = Variant("integers", {**keys, "max_position_embeddings": 64})
    save_byte_tokenizer(save_model(make_model(sizes), sizes, folder / "hf"))
    flags = ("--dtype", dtype, "--tp-size", "2")
    calibrated = ("--calib-data", data, "--group-size", "64") if dtype == "w4a16_awq" else ()
    ran = convert(folder / "hf", folder / "ckpt", *flags, *calibrated)
    assert ran.code == 0, ran.err
    assert ("calibrate: 3 of 3 texts" in ran.err) is bool(calibrated)
    if shown := inspected(folder / "ckpt"):
        assert (shown["quant_algo"], shown["problems"]) == (dtype.upper(), [])
        assert ("int4" in shown["weight_types"]) is bool(calibrated)
        assert ("TensorRT-LLM rounds the linear" in str(shown["notes"])) is not bool(calibrated)
    build = ("build", "--checkpoint-dir", folder / "ckpt", "--output-dir", folder / "engine")
    dry = trtla(*build, "--backend", "tensorrt-llm", "--dry-run", "--max-seq-len", "32")
    assert dry.code == 0, dry.err
    assert "trtllm-build --checkpoint_dir" in dry.out
    assert trtla(*build, "--max-seq-len", "32").code == 0
    assert trtla("run", "--engine-dir", folder / "engine", "--input-text", "Half").code == 0


FP8, GROUP = ("--dtype", "fp8"), ("--group-size", "64")
_ROUNDED = "--group-size 64 is for --dtype int8, int4 or w4a16_awq, and dtype is "


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ((*FP8, *GROUP), [f"{_ROUNDED}fp8"]),
        (("--dtype", "bfloat16", *GROUP), [f"{_ROUNDED}bfloat16"]),
        (("--dtype", "w8a16", *GROUP), [f"{_ROUNDED}w8a16"]),
        (GROUP, [f"{_ROUNDED}auto"]),
        (("--dtype", "int4", "--group-size", "48"), ["48"]),
        (("--dtype", "int4", "--kv-cache-dtype", "fp8"), ["for --dtype fp8, and dtype"]),
        (("--dtype", "int4", "--calib-size", "5"), ["5 is for texts", "add --calib-data"]),
        (("--dtype", "int4", "--tp-size", "2"), ["are not split", "omit --tp-size"]),
        (("--dtype", "w4a16_awq", "--group-size", "32"), ["32 is unknown to W4A16_AWQ"]),
        (("--dtype", "w4a16", "--calib-data", "x.txt"),
         ["--dtype fp8, int8, int4 or w4a16_awq, and dtype is w4a16"]),
        (("--dtype", "bfloat16", "--kv-cache-dtype", "fp8"), ["fp8 is for --dtype fp8"]),
        (("--dtype", "bfloat16", "--calib-data", "x.txt"), ["x.txt is for --dtype fp8"]),
        (("--dtype", "int4", "--use-fp8"), ["--use-fp8 quantises to FP8, and --dtype int4"]),
        (("--dtype", "bfloat16", "--calib-size", "5"), ["5 is for --dtype fp8"]),
        (("--dtype", "bfloat16", "--calib-device", "cpu"), ["cpu is for --dtype fp8"]),
        ((*FP8, "--calib-data", "no.txt"), ["no.txt does not exist"]),
        ((*FP8, "--calib-data", "xsum"), ["xsum is neither", "--calib-data PATH"]),
        ((*FP8, "--calib-data", "{empty}"), ["holds no text"]),
        ((*FP8, "--calib-data", "{data}", "--calib-size", "0"), ["--calib-size"]),
        ((*FP8, "--calib-data", "{data}", "--calib-device", "cuda:77"), ["cuda:77"]),
        ((*FP8, "--calib-data", "no.txt", "--model-dir", "absent"), ["absent does not exist"]),
        ((*FP8, "--calib-data", "{data}", "--model-dir", "{bare}"),
         ["bare has no tokenizer files", "tokenizer.json"]),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(
    flags: tuple[str, ...], parts: list[str], model: Path, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.txt").write_text("")
    places = {"data": data, "empty": tmp_path / "empty.txt", "bare": tmp_path / "bare"}
    if "{bare}" in flags:
        byte_model(places["bare"], tokenizer=False)
    given = [flag.format(**places) for flag in flags]
    refused(convert(model, tmp_path / "out", *given), 2, *parts)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flag", "value"),
    [("kv-cache-dtype", "fp8"), ("calib-data", "x"), ("calib-size", "5"), ("calib-device", "cpu")],
)
def test_calibration_flags_of_the_environment_need_fp8(
    flag: str, value: str, model: Path, tmp_path: Path
) -> None:
    env = {"TRTLA_CONVERT_" + flag.replace("-", "_").upper(): value}
    refused(convert(model, tmp_path / "out", env=env), 2, f"--{flag} {value}", "dtype is auto")


def test_calib_size_limits_the_texts(model: Path, tmp_path: Path) -> None:
    lines = tmp_path / "texts.jsonl"
    lines.write_text("".join(json.dumps({"article": c * 9}) + "\n" for c in "abcdef"))
    flags = ("--dtype", "fp8", "--calib-data", lines)
    few = convert(model, tmp_path / "few", *flags, "--calib-size", "2")
    assert "calibrate: 2 of 2 texts" in few.err
    every = convert(model, tmp_path / "every", *flags)
    assert "calibrate: 6 of 6 texts" in every.err
    quiet = convert(model, tmp_path / "quiet", *flags, "--quiet")
    assert (quiet.code, quiet.err) == (0, "")
    name = "transformer.layers.1.mlp.proj.activation_scaling_factor"
    two, six = (load_file(tmp_path / n / "rank0.safetensors")[name] for n in ("few", "every"))
    assert 0 < two <= six


@pytest.mark.deep
def test_no_hub_names_the_other_way(model: Path, tmp_path: Path) -> None:
    """A process of its own: the hub's client remembers what it knew when it was imported."""
    pytest.importorskip("datasets")
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "no-cache")}
    env |= {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
    flags = ("--model-dir", model, "--output-dir", tmp_path / "out", "--dtype", "fp8")
    done = process("convert", *flags, env=env)
    assert done.returncode == 2, done.stderr
    assert "error: cnn_dailymail cannot be loaded" in done.stderr
    assert "--calib-data PATH" in done.stderr
    assert "Retrying" not in done.stderr
