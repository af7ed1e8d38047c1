"""TensorRT-LLM builds without TensorRT-LLM: limits, refusals, memory, the final check.

Builds with the library's stand-in are in tests/contract/test_build.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.trtllm_engines import edit_plugins, write_engine
from trtla import LookaheadConfig
from trtla.build.engine import describe_build, estimate_memory
from trtla.errors import TrtlaError, UsageError
from trtla.formats.config import CheckpointConfig, Mapping, Quantization
from trtla.formats.engine import open_engine
from trtla.formats.engine_config import BuildConfig
from trtla.formats.engine_limits import BuildSettings, plan_limits
from trtla.formats.plan import rank_plan
from trtla.trtllm import library as trtllm_library
from trtla.trtllm.build import check_written
from trtla.trtllm.rules import check_trtllm

SEVENS = LookaheadConfig(7, 7, 7)
LLAMA_8B = CheckpointConfig(
    architecture="LlamaForCausalLM",
    dtype="bfloat16",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_size=128,
    max_position_embeddings=131072,
)
FP8 = Quantization(quant_algo="FP8")
FP8_CACHE = Quantization(quant_algo="FP8", kv_cache_quant_algo="FP8")


def limits(**keys: Any) -> BuildConfig:
    settings = BuildSettings(**{"lookahead": SEVENS, **keys})
    return plan_limits(settings, LLAMA_8B, "tensorrt-llm").build_config


def variant(config: CheckpointConfig = LLAMA_8B, **keys: Any) -> CheckpointConfig:
    return config.model_copy(update=keys)


def builders_rules(limits: BuildConfig) -> tuple[int, int]:
    """(max_seq_len, max_num_tokens) after TensorRT-LLM's build(): _init_max_seq_len and the rest.

    Written down a second time, from builder.py and _common.py.
    """
    seq_len, tokens = limits.max_text_len, limits.max_num_tokens
    if tokens > seq_len * limits.max_batch_size:
        tokens = seq_len * limits.max_batch_size
    if tokens < 32:  # tokens_per_block
        tokens = 32
    if limits.speculative_decoding_mode != 1:
        seq_len += limits.max_draft_len
        tokens = max(tokens, limits.max_batch_size * (limits.max_draft_len + 1))
    return seq_len, tokens


def test_the_worked_example_of_an_8b_model() -> None:
    asked = BuildSettings(SEVENS, max_batch_size=32, max_input_len=1024, max_seq_len=2048)
    planned = plan_limits(replace(asked, max_num_tokens=1024), LLAMA_8B, "tensorrt-llm")
    engine = planned.build_config
    assert (engine.max_draft_len, engine.max_seq_len, engine.max_num_tokens) == (83, 2131, 2688)
    assert planned.notes == (
        "build() raises max_seq_len 2048 by max_draft_len 83 to 2131",
        "max_num_tokens 1024 is raised to 2688 = max_batch_size 32 x (max_draft_len 83 + 1)",
    )
    memory = estimate_memory(LLAMA_8B, engine)
    layer = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096
    assert memory.weight_bytes == (2 * 128256 * 4096 + 32 * layer + 4096) * 2
    assert f"{memory.weight_bytes / 1e9:.2f}" == "16.06"
    assert memory.kv_cache_bytes == 32 * 2131 * 2 * 32 * 8 * 128 * 2
    assert memory.draft_kv_cache_bytes == 32 * 83 * 2 * 32 * 8 * 128 * 2
    assert memory.step_tokens == 2688
    assert memory.logits_bytes == 2688 * 128256 * 4


def test_every_correction_is_one_sentence() -> None:
    def notes(**keys: Any) -> tuple[str, ...]:
        return plan_limits(BuildSettings(**keys), LLAMA_8B, "tensorrt-llm").notes

    assert notes() == ()
    assert notes(max_batch_size=1) == (
        "build() lowers max_num_tokens 8192 to 2048 = max_batch_size 1 x max_seq_len 2048",
    )
    assert notes(max_num_tokens=100) == (
        "max_num_tokens 100 is raised to 1024 = max_input_len: a prompt is read in one step",
    )
    assert notes(max_batch_size=1, max_seq_len=16, max_input_len=8) == (
        "build() lowers max_num_tokens 8192 to 16 = max_batch_size 1 x max_seq_len 16",
        "max_num_tokens 16 is raised to 32, one block of the K/V cache",
    )
    many = notes(lookahead=SEVENS, max_batch_size=2048)
    assert many[1:] == (
        "max_num_tokens 8192 is raised to 172032 = max_batch_size 2048 x (max_draft_len 83 + 1)",
        "max_num_tokens 172032 is above 16384, which TensorRT-LLM advises against: "
        "max_batch_size 2048 feeds 172032 tokens in a step",
    )


def test_torch_engines_are_corrected_by_trtla_alone() -> None:
    asked = BuildSettings(SEVENS, max_batch_size=2, max_num_tokens=100)
    planned = plan_limits(asked, LLAMA_8B)
    assert planned.build_config.max_num_tokens == 168  # a prompt may be read in pieces
    assert planned.notes == (
        "max_seq_len 2048 is raised by max_draft_len 83 to 2131",
        "max_num_tokens 100 is raised to 168 = max_batch_size 2 x (max_draft_len 83 + 1)",
    )


@given(
    triple=st.tuples(st.integers(1, 12), st.integers(2, 9), st.integers(0, 12))
    | st.just((1, 1, 0)),
    batch_size=st.integers(1, 300),
    seq_len=st.integers(1, 5000),
    data=st.data(),
)
def test_what_is_planned_is_what_build_makes_of_it(
    triple: tuple[int, int, int], batch_size: int, seq_len: int, data: st.DataObject
) -> None:
    asked = BuildSettings(
        LookaheadConfig(*triple),
        max_batch_size=batch_size,
        max_seq_len=seq_len,
        max_input_len=data.draw(st.none() | st.integers(1, seq_len)),
        max_num_tokens=data.draw(st.none() | st.integers(1, 40000)),
    )
    planned = plan_limits(asked, LLAMA_8B, "tensorrt-llm")
    engine = planned.build_config
    assert builders_rules(engine) == (engine.max_seq_len, engine.max_num_tokens)
    assert engine.max_num_tokens >= engine.max_input_len  # or such prompts are refused
    if engine.max_num_tokens != (asked.max_num_tokens or 8192):
        final = f"to {engine.max_num_tokens}"
        assert any("max_num_tokens" in note and final in note for note in planned.notes)


def test_context_logits_do_not_go_with_drafts_nor_dynamic_rope_with_anything() -> None:
    with pytest.raises(UsageError, match="gather_context_logits does not go with lookahead 7,7,7"):
        limits(gather_context_logits=True)
    plain = limits(lookahead=LookaheadConfig(1, 1, 0), gather_context_logits=True)
    scaled = variant(rotary_scaling={"rope_type": "dynamic", "factor": 2.0})
    with pytest.raises(UsageError, match="rope scaling dynamic") as caught:
        check_trtllm(scaled, plain, (9, 0), "0.21.0")
    assert "--backend torch" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("keys", "capability", "named"),
    [
        ({"dtype": "float32"}, (9, 0), "dtype is float32"),
        ({"head_size": 40}, (9, 0), "head_size 40 has no kernel"),
        ({"head_size": 272}, (9, 0), "head_size 272 has no kernel"),
        ({"num_attention_heads": 80, "num_key_value_heads": 2}, (9, 0), "80 query heads on 2"),
        ({"mapping": Mapping(world_size=2, pp_size=2)}, (9, 0), "lookahead does not go with pp_"),
        (
            {"rotary_scaling": {"type": "dynamic", "factor": 2.0}},
            None,
            "rope scaling dynamic cannot be built",
        ),
        ({}, (10, 0), "compute capability 10.0 is Blackwell"),
        ({}, (10, 3), "compute capability 10.3 is Blackwell"),
        ({}, (7, 5), "compute capability 7.5 is below 8.0"),
        ({"quantization": FP8}, (8, 6), "the checkpoint is FP8, and compute capability 8.6"),
        ({"quantization": FP8_CACHE}, (8, 0), "compute capability 8.0 is below 8.9"),
    ],
)
def test_what_has_no_kernel_is_refused(
    keys: dict[str, Any], capability: tuple[int, int] | None, named: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_trtllm(variant(**keys), limits(), capability)
    assert named in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("keys", "capability"),
    [
        ({"dtype": "float32"}, (9, 0)),
        ({"head_size": 40}, (8, 0)),
        ({}, (10, 0)),
        ({"quantization": FP8_CACHE}, (8, 9)),
        ({"mapping": Mapping(world_size=4, tp_size=2, pp_size=2)}, (9, 0)),
    ],
)
def test_plain_engines_need_no_lookahead_kernel(
    keys: dict[str, Any], capability: tuple[int, int]
) -> None:
    plain = limits(lookahead=LookaheadConfig(1, 1, 0))
    assert check_trtllm(variant(**keys), plain, capability) == ()


@pytest.mark.parametrize(
    ("keys", "capability", "named"),
    [
        ({}, None, "there is no GPU here"),
        ({"head_size": 96}, (8, 0), "No available XQA kernels are found for speculative decoding"),
        ({}, (12, 0), "lookahead is not verified on this GPU: compute capability 12.0"),
        ({"quantization": FP8}, (9, 0), "build() switches FP8 context FMHA off"),
        (
            {"quantization": Quantization(kv_cache_quant_algo="FP8")},
            (9, 0),
            "build() switches paged-context FMHA off",
        ),
    ],
)
def test_what_is_not_verified_or_switched_off_is_told(
    keys: dict[str, Any], capability: tuple[int, int] | None, named: str
) -> None:
    (note,) = check_trtllm(variant(**keys), limits(), capability)
    assert named in note


def test_a_vocabulary_that_is_padded_otherwise_in_stages_is_refused() -> None:
    plain = limits(lookahead=LookaheadConfig(1, 1, 0))
    split = Mapping(world_size=4, tp_size=2, pp_size=2)
    with pytest.raises(UsageError, match=r"vocab_size 32002 is padded to 32002 .* and to 32004"):
        check_trtllm(variant(mapping=split, vocab_size=32002), plain, (9, 0))
    assert check_trtllm(variant(mapping=split, vocab_size=32000), plain, (9, 0)) == ()
    tensor = Mapping(world_size=4, tp_size=4)
    assert check_trtllm(variant(mapping=tensor, vocab_size=32002), plain, (9, 0)) == ()


def test_lookahead_on_the_first_release_is_told_of() -> None:
    (note,) = check_trtllm(LLAMA_8B, limits(), (9, 0), "0.20.0")
    assert "0.20.0" in note
    assert "1.2.1" in note
    plain = limits(lookahead=LookaheadConfig(1, 1, 0))
    assert check_trtllm(LLAMA_8B, plain, (9, 0), "0.20.0") == ()
    for release in ("0.21.0", "1.0.0", "1.2.1", None):
        assert check_trtllm(LLAMA_8B, limits(), (9, 0), release) == ()


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0)])
def test_the_safe_set_has_nothing_to_tell(capability: tuple[int, int]) -> None:
    assert check_trtllm(LLAMA_8B, limits(), capability) == ()


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (4, 1), (16, 1), (1, 2), (2, 4)])
def test_memory_of_several_ranks(tp: int, pp: int) -> None:
    config = variant(mapping=Mapping(world_size=tp * pp, tp_size=tp, pp_size=pp))
    memory = estimate_memory(config, limits())
    ranks = [sum(2 * prod(t.shape) for t in rank_plan(config, rank)) for rank in range(tp * pp)]
    assert memory.weight_bytes == sum(ranks)
    assert memory.weight_bytes_per_rank == max(ranks)
    heads = max(8 // tp, 1)  # above 8 ranks K/V heads are repeated
    assert memory.kv_cache_bytes_per_rank == 32 * 2131 * 2 * (32 // pp) * heads * 128 * 2
    assert memory.kv_cache_bytes == memory.kv_cache_bytes_per_rank * tp * pp


def test_memory_of_fp8() -> None:
    memory = estimate_memory(variant(quantization=FP8_CACHE), limits())
    assert memory.kv_cache_bytes == 32 * 2131 * 2 * 32 * 8 * 128
    layers = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    scales = 32 * (2 * 5 + 1) * 4
    rest = (2 * 128256 * 4096 + 32 * 2 * 4096 + 4096) * 2
    assert memory.weight_bytes == layers + scales + rest


def engine_and_plan(folder: Path) -> tuple[BuildConfig, CheckpointConfig]:
    write_engine(folder, max_num_tokens=8192)
    engine = open_engine(folder).config
    return engine.build_config, engine.pretrained_config


@pytest.mark.parametrize(
    ("key", "value", "planned"),
    [
        ("max_batch_size", 16, 32),
        ("max_input_len", 512, 1024),
        ("max_seq_len", 2048, 2131),
        ("max_num_tokens", 4096, 8192),
        ("max_draft_len", 39, 83),
        ("max_beam_width", 4, 1),
        ("speculative_decoding_mode", 1, 8),
        ("gather_context_logits", True, False),
        ("kv_cache_type", "CONTINUOUS", "PAGED"),
        ("plugin_config.gpt_attention_plugin", None, "auto"),
        ("plugin_config.gemm_plugin", "bfloat16", "auto"),
        ("plugin_config.remove_input_padding", False, True),
        ("plugin_config.paged_kv_cache", False, True),
    ],
)
def test_an_engine_other_than_planned_is_named(
    key: str, value: object, planned: object, tmp_path: Path
) -> None:
    plan, config = engine_and_plan(tmp_path)
    check_written(tmp_path, plan, config)  # as planned
    plugin = key.removeprefix("plugin_config.")
    if plugin != key:
        edit_plugins(tmp_path, **{plugin: value})
    else:
        write_engine(tmp_path, **{key: value})
    with pytest.raises(TrtlaError) as caught:
        check_written(tmp_path, plan, config)
    assert f"TensorRT-LLM wrote {key} {value}" in caught.value.message
    assert plugin != key or caught.value.message.endswith(f", planned was {planned}")


def test_a_rank_that_was_not_written_is_named(tmp_path: Path) -> None:
    plan, config = engine_and_plan(tmp_path)
    (tmp_path / "rank0.engine").unlink()
    with pytest.raises(TrtlaError, match=r"wrote no rank0\.engine"):
        check_written(tmp_path, plan, config)


def test_a_dry_run_needs_no_tensorrt_llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trtllm_library, "load", lambda name="": pytest.fail("imported"))
    config = json.loads(LLAMA_8B.model_dump_json())
    config["mapping"] = {"world_size": 2, "tp_size": 2, "pp_size": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = describe_build(tmp_path, BuildSettings(SEVENS), backend="tensorrt-llm")
    assert plan.files == ("config.json", "rank0.engine", "rank1.engine", "trtla.json")
    assert plan.memory.ranks == 2
    assert len(plan.commands) == 1
