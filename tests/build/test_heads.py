"""Trained heads on disk: the same head from every format, and one sentence about each bad one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.support.head_sizes import EagleSizes, MedusaSizes
from tests.support.heads import EAGLE_STYLES, MEDUSA_STYLES, edit, fitting, head_path, write_head
from tests.support.models import LLAMA3
from trtla.errors import UsageError
from trtla.formats.config import CheckpointConfig
from trtla.formats.heads.head import EagleConfig, Head, MedusaConfig
from trtla.formats.heads.reading import check_fits, drafter_at, read_head
from trtla.formats.hf_config import read_hf_config

LAYERS = 5
IDS = "eagle_aux_hidden_state_layer_ids"
_AS_GGUF_HAS_NOT = {"norm_output", "fc_norm"}


@pytest.fixture(scope="module")
def target(tiny_llama: Path) -> CheckpointConfig:
    """The config of the model that heads of the default sizes fit."""
    return read_hf_config(tiny_llama)[0]


def with_layers(target: CheckpointConfig, layers: int) -> CheckpointConfig:
    return target.model_copy(update={"num_hidden_layers": layers})


def check_tensors(head: Head, sizes: EagleSizes | MedusaSizes) -> None:
    """The head's tensors are those that were written."""
    assert set(head.tensors) == set(sizes.tensors)
    for name, array in sizes.tensors.items():
        read = head.tensor(name)
        assert read.dtype == np.float32
        assert read.flags.c_contiguous
        np.testing.assert_array_equal(read, array, name)


HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "own": {
        "head_dim": 48,
        "embedding": True,
        "target_hidden_size": 192,
        "norm_before_residual": True,
        "rope_theta": 5e5,
        "rope_scaling": LLAMA3,
    },
    "whole vocabulary": {"draft_vocab_size": 2048, "boundaries": (2, 3, 5), "seed": 3},
    "four taps": {"boundaries": (2, 3, 4, 5), "fc_norm": True, "lm_head": True},
    "joined norm": {"input_norm": True, "norm_output": True, "hidden_size": 128},
}


@pytest.mark.parametrize("style", EAGLE_STYLES)
@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_the_same_in_every_format(name: str, style: str, tmp_path: Path) -> None:
    keys = dict(HEADS[name])
    if style == "gguf" and (_AS_GGUF_HAS_NOT & {*keys} or len(keys.get("boundaries", "123")) > 3):
        keys = {k: v for k, v in keys.items() if k in ("input_norm", "hidden_size", "seed")}
    if keys.get("hidden_size"):
        keys["embedding"] = True  # the target's is wider
    sizes = EagleSizes(**keys)
    head = read_head(write_head(head_path(tmp_path, style), style, dtype="float16", **keys))
    check_tensors(head, sizes)
    if sizes.target_ids is None:
        assert head.target_ids is None
    else:
        np.testing.assert_array_equal(head.target_ids, sizes.target_ids)
    config = head.config
    assert isinstance(config, EagleConfig)
    assert (config.vocab_size, config.target_hidden_size) == (2048, sizes.target_hidden_size)
    assert (config.boundaries, config.num_taps) == (sizes.boundaries, sizes.taps)
    flags = (config.fc_norm, config.input_norm, config.norm_before_residual)
    assert flags == (sizes.fc_norm, sizes.input_norm, sizes.norm_before_residual)
    # SpecForge's own class feeds back what it has before the norm.
    obeys = style in ("angelslim", "speculators")
    assert config.norm_output is (sizes.norm_output and obeys)
    layer = config.layer
    assert (layer.vocab_size, layer.num_hidden_layers) == (sizes.draft_vocab_size, 1)
    assert (layer.hidden_size, layer.intermediate_size) == (sizes.hidden_size, 96)
    assert (layer.num_attention_heads, layer.num_key_value_heads) == (4, 2)
    assert (layer.head_size, layer.rotary_base) == (sizes.head_size, sizes.rope_theta)
    assert (layer.norm_epsilon, layer.dtype) == (1e-5, "float16")
    scaling = layer.rotary_scaling or {}
    if sizes.rope_scaling and style != "gguf":  # whose factors fit more than one trained length
        assert scaling["original_max_position_embeddings"] == 16
    assert scaling.get("rope_type") == ("llama3" if sizes.rope_scaling else None)


@pytest.mark.parametrize("style", MEDUSA_STYLES)
def test_medusa_heads_are_the_same_under_every_name(
    style: str, tmp_path: Path, target: CheckpointConfig
) -> None:
    sizes = {"num_heads": 4, "num_layers": 1 + (style != "medusa-pt"), "vocab_size": 2048}
    head = read_head(write_head(tmp_path / "head", style, **sizes), target=target)
    check_tensors(head, MedusaSizes(**sizes))
    assert head.config == MedusaConfig(256, 2048, 4, sizes["num_layers"])  # config.json has 2


def test_older_medusa_heads_share_their_targets_lm_head(
    tmp_path: Path, target: CheckpointConfig
) -> None:
    head = read_head(write_head(tmp_path / "head", "medusa-pt", lm_head=False), target=target)
    check_tensors(head, MedusaSizes(lm_head=False))
    assert head.config == MedusaConfig(256, None, 3, 1)


def test_medusa_heads_need_no_config_and_may_lie_in_their_models_files(tmp_path: Path) -> None:
    folder = write_head(tmp_path / "head", "medusa")
    (folder / "config.json").unlink()
    check_tensors(read_head(folder), MedusaSizes())

    def whole(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(4, 4)
        tensors["lm_head.weight"] = torch.zeros(4, 4)

    check_tensors(
        read_head(write_head(tmp_path / "m", "medusa-model", change=whole)), MedusaSizes()
    )


def test_types_of_files_are_read_as_float32(tmp_path: Path) -> None:
    for dtype in ("bfloat16", "float32"):
        head = read_head(write_head(tmp_path / dtype, dtype=dtype))
        check_tensors(head, EagleSizes())
        assert isinstance(head.config, EagleConfig)
        assert head.config.layer.dtype == dtype
    blocks = read_head(write_head(tmp_path / "q8.gguf", "gguf", dtype="q8_0"))
    for name, array in EagleSizes().tensors.items():
        assert np.abs(blocks.tensor(name) - array).max() <= np.abs(array).max() / 127


@pytest.mark.parametrize(
    ("style", "ids", "expected"),
    [
        ("specforge", [2, 3, 4], (2, 3, 4)),
        ("specforge", [1, 2, 4], (2, 3, 5)),  # outputs
        ("speculators", [1, 2, 4], (1, 2, 4)),
        ("angelslim", [1, 2, 4], (2, 3, 5)),
        ("gguf", [1, 2, 4], (1, 2, 4)),
    ],
)
def test_layers_of_files(
    style: str, ids: list[int], expected: tuple[int, ...], tmp_path: Path
) -> None:
    key = {"gguf": "extract_layers", "speculators": IDS}.get(style, f"eagle_config__{IDS}")
    path = write_head(head_path(tmp_path, style), style, change=edit(**{key: ids}))
    assert read_head(path).config.boundaries == expected
    given = read_head(path, layers=(1, 3, 4)).config
    assert (given.boundaries, given.taps) == ((1, 3, 4), (0, 2, 3))


def test_layers_that_no_file_names_are_the_trainers_default(
    tmp_path: Path, target: CheckpointConfig
) -> None:
    path = write_head(tmp_path / "head", boundaries=None)
    assert read_head(path).config.boundaries == ()
    empty = edit(**{f"eagle_config__{IDS}": []})
    assert read_head(write_head(tmp_path / "empty", change=empty)).config.boundaries == ()
    assert read_head(path, target=with_layers(target, 32)).config.boundaries == (2, 16, 29)
    assert read_head(path, (2, 3, 4), target).config.boundaries == (2, 3, 4)
    for layers in (5, 6):
        with pytest.raises(UsageError, match=f"in a model of {layers} layers") as caught:
            read_head(path, target=with_layers(target, layers))
        assert "--head-layers" in str(caught.value.hint)


def test_absent_flags_mean_what_servers_take_them_for(tmp_path: Path) -> None:
    for style, expected in (("speculators", True), ("specforge", False), ("gguf", False)):
        path = write_head(
            head_path(tmp_path / style, style) if style != "gguf" else tmp_path / "head.gguf",
            style,
            change=lambda config, _: config.pop("norm_before_residual", None),
        )
        assert read_head(path).config.norm_before_residual is expected, style


def test_an_older_head_has_the_class_of_a_whole_llama(tmp_path: Path) -> None:
    change = edit(architectures=["LlamaForCausalLM"])
    check_tensors(read_head(write_head(tmp_path / "head", "official", change=change)), EagleSizes())


def test_a_heads_own_window(tmp_path: Path) -> None:
    keys = {"layer_types": ["sliding_attention"], "sliding_window": 2048}
    change = edit(**{f"transformer_layer_config__{key}": value for key, value in keys.items()})
    head = read_head(write_head(tmp_path / "head", "speculators", change=change))
    assert head.config.layer.layer_windows == (2048,)


def test_newer_gguf_files_call_the_layers_otherwise(tmp_path: Path) -> None:
    def newer(metadata: dict[str, Any], _: dict[str, Any]) -> None:
        metadata["target_layers"] = metadata.pop("extract_layers")

    path = write_head(tmp_path / "head.gguf", "gguf", change=newer)
    assert read_head(path).config.boundaries == (2, 3, 4)


def test_paths_that_hold_no_head(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_head(tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"has no config\.json"):
        read_head(tmp_path)
    folder = write_head(tmp_path / "head")
    with pytest.raises(UsageError, match="is not a folder"):
        read_head(folder / "model.safetensors")
    with pytest.raises(UsageError, match="read the last state alone"):
        read_head(write_head(tmp_path / "medusa", "medusa"), layers=(2, 3, 4))


def test_what_is_a_drafter(tmp_path: Path, tiny_llama: Path) -> None:
    assert drafter_at(write_head(tmp_path / "head")) == "an EAGLE-3 head"
    assert drafter_at(write_head(tmp_path / "head.gguf", "gguf")) == "an EAGLE-3 head"
    assert drafter_at(write_head(tmp_path / "medusa", "medusa-pt")) == "Medusa heads"
    assert drafter_at(tiny_llama) is None
    assert drafter_at(tmp_path / "nothing") is None


def test_a_head_fits_models_of_its_sizes(tmp_path: Path, target: CheckpointConfig) -> None:
    head = read_head(write_head(tmp_path / "head", **fitting(target)))
    check_fits(head, target)
    for key, value in (("vocab_size", 99), ("hidden_size", 128), ("num_hidden_layers", 3)):
        with pytest.raises(UsageError, match=str(value)):
            check_fits(head, target.model_copy(update={key: value}))
    assert isinstance(head.config, EagleConfig)
    unnamed = replace(head, config=replace(head.config, boundaries=()))
    check_fits(unnamed, with_layers(target, 32))
    with pytest.raises(UsageError, match="in a model of 5 layers"):
        check_fits(unnamed, target)


def test_a_file_that_is_replaced_is_noticed(tmp_path: Path) -> None:
    path = write_head(tmp_path / "head")
    head = read_head(path)
    save_file({"other": torch.zeros(3)}, path / "model.safetensors")
    with pytest.raises(UsageError, match="changed while it was read"):
        head.tensor("fc")
