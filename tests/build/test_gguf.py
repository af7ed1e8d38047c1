"""GGUF files as input: the weights, config and refusals, on files written as llama.cpp does."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.command import needs
from tests.support.examples import examples
from tests.support.gguf_models import BYTE_LEVEL, byte_vocabulary, dequantized, write_gguf
from tests.support.inspected import inspected
from tests.support.models import BASE, VARIANTS, Variant, logits, make_model, save_model
from tests.support.tensors import equal
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.console import size
from trtla.errors import UsageError
from trtla.files import user_cache
from trtla.formats.engine import engine_from_hugging_face, open_engine
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.gguf.folder import model_folder, model_name
from trtla.formats.gguf.header import MADE_OF, quick_header, read_header
from trtla.formats.gguf.weights import GgufFile
from trtla.formats.hf_config import read_hf_config
from trtla.formats.transformers_load import load_model
from trtla.llm.llm import LLM
from trtla.llm.text import Tokenizer
from trtla.settings.lookahead import LookaheadConfig
from trtla.settings.messages import Rendering
from trtla.settings.sampling import SamplingParams

_LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
_KEYS: dict[str, dict[str, Any]] = {
    "linear": _LINEAR,
    "mistral-window": {"attention.sliding_window": 8},
    "qwen2-window": {
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": [False, True],
    },
}
_PLAIN = ("gqa", "mqa", "mha", "tied", "head-dim", "attention-bias", "mlp-bias", "theta", "linear",
          "llama3", "qwen2", "mistral-window", "qwen2-window")  # fmt: skip
_BIG = Variant("big", {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1})
KINDS = [kind.name for kind in gguf.quants._type_traits]


def variant(name: str) -> Variant:
    return next(one for one in VARIANTS if one.name == name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(make_model(variant("gqa")), tmp_path / "model.gguf")


@pytest.mark.parametrize("name", _PLAIN)
def test_a_file_is_the_folder_it_was_made_from(name: str, tmp_path: Path) -> None:
    model = make_model(variant(name))
    folder = save_model(model, variant(name), tmp_path / "hf")
    keys = _KEYS.get(name, {})
    arch = "qwen2" if name.startswith("qwen2") else "llama"
    file = write_gguf(model, tmp_path / "model.gguf", arch=arch, keys=keys)
    ours, theirs = (engine_from_hugging_face(path, dtype="float32") for path in
                    (model_folder(file), folder))  # fmt: skip
    assert ours.config.pretrained_config == theirs.config.pretrained_config
    assert [model_name(str(path)) for path in (model_folder(file), folder)] == [
        str(file), str(folder)
    ]  # fmt: skip
    for (name, one), (_, other) in zip(ours.weights(), theirs.weights(), strict=True):
        assert equal(one, other), name


@pytest.mark.parametrize(
    ("pattern", "expected"), [(2, (8, None)), (1, ()), (0, (8, 8)), ([True, False], (8, None))]
)
def test_every_nth_layer_or_those_of_a_list_have_no_window(
    pattern: int | list[bool], expected: tuple[int | None, ...], tmp_path: Path
) -> None:
    keys = {"attention.sliding_window": 8, "attention.sliding_window_pattern": pattern}
    model = make_model(variant("qwen2"))
    file = write_gguf(model, tmp_path / "model.gguf", arch="qwen2", keys=keys)
    assert read_hf_config(model_folder(file))[0].layer_windows == expected


@pytest.mark.parametrize(
    ("arch", "pattern", "named"),
    [
        ("llama", [True, False], "llama.attention.sliding_window of these layers is not"),
        ("llama", [True], "llama.attention.sliding_window of these layers is not"),
        ("phi3", [True, False], "phi3.attention.sliding_window of these layers is not"),
        ("qwen2", [True], "layer_types has 1 entries for 2 layers"),
    ],
)
def test_windows_that_the_layers_do_not_have_are_refused(
    arch: str, pattern: list[bool], named: str, tmp_path: Path
) -> None:
    keys = {"attention.sliding_window": 8, "attention.sliding_window_pattern": pattern}
    model = make_model(variant("qwen2" if arch == "qwen2" else "gqa"))
    with pytest.raises(UsageError, match=named):
        model_folder(write_gguf(model, tmp_path / "model.gguf", arch=arch, keys=keys))


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_gives_the_numbers_of_the_library(kind: str, tmp_path: Path) -> None:
    model = make_model(_BIG)
    file = write_gguf(model, tmp_path / "model.gguf", kind)
    weights = GgufFile(file)
    wanted = dequantized(model, kind).state_dict()
    for name, entry in weights.entries.items():
        assert equal(weights.read(name, 0, entry.shape[0]).astype(np.float32), wanted[name]), name


def test_blocks_are_those_of_the_file(tmp_path: Path) -> None:
    file = write_gguf(make_model(_BIG), tmp_path / "model.gguf", "Q4_0")
    weights = GgufFile(file)
    name = "model.layers.0.self_attn.q_proj.weight"
    rows = weights.blocks(name, 3, 70)
    assert (weights.type_of(name), rows.shape) == ("Q4_0", (67, 256 // 32 * 18))
    numbers = gguf.dequantize(rows, gguf.GGMLQuantizationType.Q4_0)
    read = weights.read(name, 3, 70)
    assert np.array_equal(numbers, read)


def test_any_rows_are_those_of_the_whole(file: Path) -> None:
    weights = GgufFile(file)

    @examples(60)
    @given(st.sampled_from(sorted(weights.entries)), st.data())
    def check(name: str, data: st.DataObject) -> None:
        rows = weights.entries[name].shape[0]
        start = data.draw(st.integers(0, rows - 1))
        stop = data.draw(st.integers(start + 1, rows))
        assert equal(weights.read(name, start, stop), weights.read(name, 0, rows)[start:stop])

    check()


def test_the_text_is_transformers_text(tmp_path: Path) -> None:
    model = make_model(variant("tied"))
    file = write_gguf(model, tmp_path / "model.gguf", "Q8_0")
    convert(file, tmp_path / "ckpt", dtype="float32")
    settings_ = BuildSettings(LookaheadConfig(3, 3, 3), max_seq_len=16)
    build_engine(tmp_path / "ckpt", tmp_path / "engine", settings_)
    reference = dequantized(model, "Q8_0")
    prompt = [5, 17, 3]
    expected = reference.generate(
        torch.tensor([prompt]), max_new_tokens=10, do_sample=False, eos_token_id=-1
    )[0, 3:].tolist()
    with LLM(tmp_path / "engine") as llm:
        found = llm.generate([prompt], SamplingParams(max_output_len=10))[0]
    assert list(found.output_ids) == expected


@needs("inspect")
def test_inspect_shows_the_file_and_the_types_in_it(tmp_path: Path) -> None:
    file = write_gguf(make_model(_BIG), tmp_path / "model.gguf", "Q8_0")
    shown = inspected(file)
    assert (shown["path"], shown["kind"], shown["problems"]) == (str(file), "GGUF file", [])
    assert shown["bytes"] == file.stat().st_size
    tensors = {kind: each["tensors"] for kind, each in shown["weight_types"].items()}
    assert tensors == {"Q8_0": 9, "F32": 3}
    assert not any("dequantised" in note for note in shown["notes"])


@needs("inspect")
def test_inspect_names_types_that_are_dequantised_with_what_they_take(tmp_path: Path) -> None:
    file = write_gguf(make_model(_BIG), tmp_path / "model.gguf", "IQ3_S")
    shown = inspected(file)
    kept = shown["weight_types"]["IQ3_S"]
    assert kept["bits_per_weight"] == 3.438
    taken = size(kept["bytes"] * 256 // 110 * 2)
    said = f"IQ3_S is dequantised to bfloat16: {size(kept['bytes'])} take {taken}"
    assert said in shown["notes"]


def test_transformers_gets_the_model_too(tmp_path: Path) -> None:
    model = make_model(variant("tied"))
    file = write_gguf(model, tmp_path / "model.gguf", "Q8_0")
    loaded = load_model("AutoModelForCausalLM", model_folder(file), torch.float32, "a hint")
    assert equal(logits(loaded), logits(dequantized(model, "Q8_0")))


def test_the_types_of_most_weights_is_the_models(tmp_path: Path) -> None:
    for kind, dtype in (("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"),
                        ("Q8_0", "bfloat16")):  # fmt: skip
        file = write_gguf(make_model(variant("gqa")), tmp_path / f"{kind}.gguf", kind)
        assert read_hf_config(model_folder(file))[1] == dtype


def test_a_model_may_be_in_parts(tmp_path: Path) -> None:
    model = make_model(variant("gqa"))
    whole = write_gguf(model, tmp_path / "whole.gguf")
    write_gguf(model, tmp_path / "model.gguf", parts=3)
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert len(parts) == 3
    for part in (parts[0], parts[2]):
        ours, theirs = (engine_from_hugging_face(model_folder(path)) for path in (part, whole))
        assert all(
            equal(one, other)
            for (_, one), (_, other) in zip(ours.weights(), theirs.weights(), strict=True)
        )
    parts[1].unlink()
    with pytest.raises(UsageError, match=f"{parts[1].name} is missing"):
        model_folder(parts[0])


def test_a_part_alone_says_that_it_is_one(tmp_path: Path) -> None:
    write_gguf(make_model(variant("gqa")), tmp_path / "model.gguf", parts=3)
    first = min(tmp_path.glob("model-*.gguf")).rename(tmp_path / "renamed.gguf")
    with pytest.raises(UsageError, match="one of 3 files"):
        model_folder(first)


def test_a_file_that_changes_is_read_anew(tmp_path: Path) -> None:
    file = write_gguf(make_model(variant("gqa")), tmp_path / "model.gguf")
    before = model_folder(file)
    assert model_folder(file) == before
    write_gguf(make_model(variant("tied")), file)
    after = model_folder(file)
    assert after != before
    assert read_hf_config(after)[0].tie_word_embeddings


def test_a_file_that_changes_while_it_is_read_is_named(file: Path, tmp_path: Path) -> None:
    folder, weights = model_folder(file), GgufFile(file)
    write_gguf(make_model(variant("gqa"), seed=1), tmp_path / "other.gguf").replace(file)
    with pytest.raises(UsageError, match=f"{file} has changed while it was read"):
        weights.read("model.norm.weight", 0, 1)
    with pytest.raises(UsageError, match=f"{file} has changed while it was read"):
        engine_from_hugging_face(folder)


def test_parts_may_be_links(tmp_path: Path) -> None:
    store, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    store.mkdir()
    snapshot.mkdir()
    write_gguf(make_model(variant("gqa")), tmp_path / "model.gguf", parts=3)
    for number, part in enumerate(sorted(tmp_path.glob("model-*.gguf"))):
        part.rename(store / str(number))  # as the hub's cache has them
        (snapshot / part.name).symlink_to(store / str(number))
    for link in snapshot.iterdir():
        engine_from_hugging_face(model_folder(link))


@pytest.mark.parametrize("gone", ["config.json", "tokenizer.json", "header.json", "gguf.json"])
def test_a_cache_that_was_cleared_in_part_is_made_anew(gone: str, tmp_path: Path) -> None:
    tokenizer = {**BYTE_LEVEL, "tokens": byte_vocabulary()[:101], "merges": ["a b"]}
    file = write_gguf(make_model(variant("gqa")), tmp_path / "m.gguf", tokenizer=tokenizer)
    folder = model_folder(file)
    names = sorted(path.name for path in folder.iterdir())
    (folder / gone).unlink()
    assert model_folder(file) == folder
    assert sorted(path.name for path in folder.iterdir()) == names
    (folder / gone).write_text("")  # what a power failure leaves
    assert model_folder(file) == folder
    assert (folder / gone).stat().st_size
    assert not list(folder.parent.glob(".*"))


def test_folders_of_files_that_are_gone_or_changed_are_deleted(tmp_path: Path) -> None:
    one = write_gguf(make_model(variant("gqa")), tmp_path / "1.gguf")
    others = [shutil.copy(one, tmp_path / f"{number}.gguf") for number in range(2, 6)]
    folders = [model_folder(file) for file in (one, *others)]
    for folder in folders[:3]:
        os.utime(folder, (1e9, 1e9))
    model_folder(others[1])  # has it for another day
    others[0].unlink()
    os.utime(others[1], (1e9, 1e9))
    others[2].unlink()  # its folder may still be read
    shutil.rmtree(folders[4])
    model_folder(others[3])
    assert [folder.is_dir() for folder in folders] == [True, False, True, True, True]
    os.utime(folders[2], (1e9, 1e9))
    shutil.rmtree(folders[4])
    model_folder(others[3])
    assert not folders[2].exists()


def test_folders_of_files_that_cannot_be_read_now_stay(tmp_path: Path) -> None:
    file = write_gguf(make_model(variant("gqa")), tmp_path / "1.gguf")
    folder = model_folder(file)
    for path, stays in ((f"{tmp_path}/{'x' * 300}", True), (f"{file}/a", False), (5, False)):
        other = folder.parent / "other"
        other.mkdir()
        (other / MADE_OF).write_text(json.dumps({"path": path}))
        os.utime(other, (1e9, 1e9))
        shutil.rmtree(folder)
        assert model_folder(file) == folder
        assert other.exists() == stays
        shutil.rmtree(other, ignore_errors=True)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_kept_header_is_that_of_the_files_or_not_used(parts: int, tmp_path: Path) -> None:
    tokenizer = {**BYTE_LEVEL, "tokens": byte_vocabulary()[:101], "merges": ["a b"]}
    path = tmp_path / "m.gguf"
    write_gguf(make_model(variant("gqa")), path, tokenizer=tokenizer, parts=parts)
    file = min(tmp_path.glob("*.gguf"))
    fresh = quick_header(file)
    kept = model_folder(file) / "header.json"
    assert quick_header(file) == fresh
    assert fresh.tensors == read_header(file).tensors
    assert "tokenizer.ggml.tokens" in read_header(file).metadata.keys() - fresh.metadata.keys()
    good = kept.read_text()
    kept.write_text(good.replace("blk.0.attn_q", "blk.0.attn_k"))
    assert quick_header(file) == fresh
    for broken in ("", "[]", "7", "{}", '{"sha256": 1, "header": 2}', good[:-9]):
        kept.write_text(broken)
        assert quick_header(file) == fresh
    kept.write_text(good)
    os.utime(file, (1, 1))
    assert quick_header(file) == fresh  # read again: it may be another file
    file.write_bytes(b"GGUF")
    with pytest.raises(UsageError, match="truncated"):
        quick_header(file)


@pytest.mark.parametrize(
    "name", [b"\xff.gguf", b"x" * 250 + b".gguf", "日".encode() * 83 + b".gguf"]
)
def test_a_file_may_have_any_name(name: bytes, file: Path) -> None:
    file = file.rename(Path(os.fsdecode(os.fsencode(file.parent) + b"/" + name)))
    engine_from_hugging_face(model_folder(file))


@pytest.mark.parametrize("given", ["file", "cached folder"])
def test_no_output_replaces_the_file_it_is_made_of(given: str, file: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    convert(file, target)
    kept = file.rename(target / file.name)
    source = kept if given == "file" else model_folder(kept)
    with pytest.raises(UsageError, match="is that of the input"):
        convert(source, target, force=True)
    with pytest.raises(UsageError, match="is that of the input"):
        build_engine(source, target, BuildSettings(), force=True)
    assert kept.is_file()


def test_a_user_without_a_home_has_a_cache_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert not user_cache().parents[1].exists()


def test_a_relative_path_names_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert user_cache() == tmp_path / ".cache" / "trtla"


@pytest.mark.parametrize("environment", [{"XDG_CACHE_HOME": "/proc/none"}, {"HOME": "/proc/none"}])
def test_a_file_opens_where_no_cache_can_be_written(
    file: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    code = f"""if True:
        from trtla.formats.gguf.folder import model_folder, model_name
        folder = model_folder({str(file)!r})
        assert folder == model_folder({str(file)!r}) and (folder / "config.json").is_file()
        assert model_name(str(folder)) == {str(file)!r}
        print(folder)
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **environment, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)
    assert not list(tmp_path.glob("trtla-*"))


def test_a_truncated_file_is_refused_wherever_it_ends(file: Path, tmp_path: Path) -> None:
    data, cut = file.read_bytes(), tmp_path / "cut.gguf"
    header = min(info.offset for info in read_header(file).tensors.values())
    for end in [*range(0, header, 37), header, header + 999, len(data) // 2, len(data) - 33]:
        cut.write_bytes(data[:end])
        with pytest.raises(UsageError) as raised:
            model_folder(cut)
        assert str(cut) in raised.value.message
        assert raised.value.hint
    assert not list((user_cache() / "gguf").glob("cut-*"))


@examples(150)
@given(st.data())
def test_damaged_headers_give_a_sentence_or_a_model(data: st.DataObject) -> None:
    raw = bytearray(_damaged_source())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, 4000))] = data.draw(st.integers(0, 255))
    path = Path(os.environ["XDG_CACHE_HOME"]) / f"damaged-{os.getpid()}.gguf"
    path.write_bytes(raw)
    with contextlib.suppress(UsageError):  # what it must not raise is anything else
        model_folder(path)


def _damaged_source() -> bytes:
    path = Path(os.environ["XDG_CACHE_HOME"]) / f"source-{os.getpid()}.gguf"
    if not path.is_file():
        write_gguf(make_model(variant("gqa")), path, tokenizer={**BYTE_LEVEL,
                   "tokens": byte_vocabulary()[:101], "merges": ["a b"]})  # fmt: skip
    return path.read_bytes()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"arch": "gemma2"}, "architecture gemma2 is not supported"),
        ({"keys": {"expert_count": 8}}, "llama.expert_used_count"),
        ({"keys": {"expert_count": 8, "expert_used_count": 0}}, "num_experts_per_tok"),
        ({"keys": {"expert_count": 8, "expert_used_count": 2}},
         "lacks tensor blk.0.ffn_gate_inp.weight"),
        ({"keys": {"block_count": None}}, "llama.block_count is None"),
        ({"keys": {"block_count": 2**32 - 1}}, "num_hidden_layers.* must be at most 10000"),
        ({"keys": {"block_count": 3}}, "lacks tensor blk.2.attn_q.weight"),
        ({"keys": {"block_count": 1}}, "holds tensor blk.1.attn_"),
        ({"keys": {"feed_forward_length": 95}}, r"blk.0.ffn_gate.weight has shape \[96, 64\]"),
        ({"keys": {"attention.head_count": [4, 4]}}, "differs from layer to layer"),
        ({"keys": {"attention.head_count": 4.0}}, "head_count is 4.0, and must be a whole number"),
        ({"keys": {"attention.head_count_kv": 2.0}}, "head_count_kv is 2.0, and must be a whole"),
        ({"keys": {"block_count": math.nan}}, "block_count is nan, and must be a whole number"),
        ({"keys": {"attention.key_length": "16"}}, "key_length is '16', and must be a whole"),
        ({"keys": {"rope.scaling.factor": "2"}}, "rope.scaling.factor is '2', and must be a num"),
        ({"keys": {"rope.scaling.factor": -1.5}}, "factor"),
        ({"keys": {"rope.dimension_count": 8}}, "turns 8 of the 16 numbers"),
        ({"keys": {"rope.scaling.type": "yarn", "rope.scaling.factor": 0.0}}, '"factor" 0.0'),
        ({"keys": {"rope.scaling.type": 0, "rope.scaling.factor": 2.0}}, "rope scaling 0 is not"),
        ({"keys": {"rope.scaling.yarn_ext_factor": 0.5}}, "yarn_ext_factor 0.5 is not supported"),
        ({"keys": {"rope.scaling.attn_factor": 0.5}}, "attn_factor 0.5 is not supported"),
        ({"tokenizer": {"model": "bert"}}, "tokenizer 'bert' is not supported"),
        ({"tokenizer": {"model": "gpt2", "pre": "falcon", "tokens": ["a"], "merges": ["a b"]}},
         "pre-tokenizer 'falcon' is not supported"),
        ({"tokenizer": {"model": "gpt2"}}, "has no vocabulary"),
        ({"tokenizer": {"model": "gpt2", "tokens": ["a", "a"]}}, "has a token twice"),
        ({"tokenizer": {"model": "gpt2", "tokens": ["a"]}}, "has no merges"),
        ({"tokenizer": {"model": "gpt2", "tokens": ["a"], "merges": 5}}, "has no merges"),
        ({"tokenizer": {"model": "gpt2", "pre": ["gpt-2"], "tokens": ["a"], "merges": ["a b"]}},
         r"pre-tokenizer \['gpt-2'\] is not supported"),
        ({"tokenizer": {"model": "llama", "tokens": ["a", "b"]}}, "has no scores"),
        ({"tokenizer": {"model": "llama", "tokens": ["a"], "scores": ["a"]}}, "has no scores"),
        ({"tensors": {"rope_freqs.weight": np.ones(0, np.float32)}}, "not those of a Llama 3"),
        ({"tensors": {"model.norm.weight": np.ones(64, np.float32)}}, "model.norm.weight twice"),
    ],
)  # fmt: skip
def test_what_trtla_cannot_run_is_refused(
    changed: dict[str, object], said: str, tmp_path: Path
) -> None:
    model = make_model(variant("gqa"))
    file = write_gguf(model, tmp_path / "bad.gguf", **changed)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=said) as raised:
        model_folder(file)
    assert str(file) in raised.value.message
    assert raised.value.hint
    assert not list((user_cache() / "gguf").glob("bad-*"))


def test_a_factor_without_a_type_scales_linearly(tmp_path: Path) -> None:
    model = make_model(variant("gqa"))
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        folder = model_folder(write_gguf(model, tmp_path / f"{key}.gguf", keys={key: 2.0}))
        scaling = read_hf_config(folder)[0].rotary_scaling
        assert scaling is not None
        assert (scaling["rope_type"], scaling["factor"]) == ("linear", 2.0)


def test_tensors_must_not_share_names_or_bytes(file: Path) -> None:
    raw = file.read_bytes()
    one, other = b"blk.0.attn_norm.weight", b"blk.1.attn_norm.weight"
    file.write_bytes(raw.replace(one, other))
    with pytest.raises(UsageError, match=r"holds tensor blk.1.attn_norm.weight twice"):
        model_folder(file)
    at = raw.index(other) + len(other) + 4 + 8 + 4  # one dimension, and the type
    offset = int.from_bytes(raw[at : at + 8], "little") - 32
    file.write_bytes(raw[:at] + offset.to_bytes(8, "little") + raw[at + 8 :])
    with pytest.raises(UsageError, match="begins inside another one"):
        model_folder(file)


def test_named_templates_are_files_of_the_folder(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}no{% endif %}"
    tokens = byte_vocabulary()
    tokenizer = {**BYTE_LEVEL, "tokens": tokens, "merges": ["a b"], "chat_template": template,
                 "chat_template.tool_use": "{{ tools | tojson }}" + template,
                 "chat_template.../x": "no name", "token_type": [1] * 256 + [3, 3],
                 "eos_token_id": 257}  # fmt: skip
    model = make_model(Variant("vocab", {"vocab_size": len(tokens)}))
    file = write_gguf(model, tmp_path / "m.gguf", "Q8_0", tokenizer=tokenizer)
    convert(file, tmp_path / "ckpt")
    messages = [{"role": "user", "content": "a"}]
    for folder in (model_folder(file), tmp_path / "ckpt"):
        found = Tokenizer(folder)
        assert found.chat_text(messages) == "a"
        assert found.chat_text(messages, Rendering(tools=[{"a": 1}])) == '[{"a": 1}]ano'
        assert len(list(folder.rglob("*.jinja"))) == 2


def test_a_conversion_writes_what_a_checkpoint_needs(tmp_path: Path) -> None:
    tokens = byte_vocabulary()
    model = make_model(Variant("vocab", {"vocab_size": len(tokens)}))
    template = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
    tokenizer = {**BYTE_LEVEL, "tokens": tokens, "merges": ["a b"], "chat_template": template,
                 "token_type": [1] * 256 + [3, 3], "eos_token_id": 257}  # fmt: skip
    file = write_gguf(model, tmp_path / "m.gguf", "Q8_0", tokenizer=tokenizer)
    convert(file, tmp_path / "ckpt")
    engine = build_engine(tmp_path / "ckpt", tmp_path / "engine", BuildSettings())
    assert open_engine(engine.path).end_ids() == {257}
    assert (engine.path / "chat_template.jinja").read_text() == template
    assert BASE["num_hidden_layers"] == engine.config.pretrained_config.num_hidden_layers
    with LLM(engine.path) as llm, LLM(file, dtype="float32") as direct:
        assert llm.tokenizer is not None
        assert llm.encode("x<|im_start|>") == direct.encode("x<|im_start|>")
        assert llm.encode("<|im_end|>") == (257,)
