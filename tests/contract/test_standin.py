"""The stand-in's names, types and defaults, in every release it plays."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.standin import Standin
from tests.support.unchanged import STAND_IN_SOURCES

pytestmark = [pytest.mark.deep, STAND_IN_SOURCES]

EVERY = ["0.20.0", "0.21.0", "1.0.0", "1.1.0", "1.2.1", "1.3.0rc21"]
WRONG = "incompatible .* arguments"


@pytest.fixture
def e(standin: Standin) -> Any:
    return standin.load("bindings.executor")


@pytest.mark.parametrize("standin", EVERY, indirect=True)
def test_each_release_has_what_it_had(standin: Standin, capsys: Any) -> None:
    e, version = standin.load("bindings.executor"), tuple(map(int, standin.version.split(".")[:2]))
    backend = version < (1, 3)
    banner = f"[TensorRT-LLM] TensorRT-LLM version: {standin.version}\n"
    assert capsys.readouterr().out == banner, "on stdout"
    assert standin.load().__version__ == e.__version__ == standin.version
    assert hasattr(e, "LookaheadDecodingConfig")
    assert hasattr(e, "Executor") == hasattr(e.Request, "lookahead_config") == backend
    assert hasattr(e.Request, "cache_salt_id") == (version >= (1, 1))
    assert hasattr(e.Result(), "avg_decoded_tokens_per_iter") == (version >= (1, 1))
    fail_fast = "fail_fast_on_attention_window_too_large"
    assert hasattr(e.ExecutorConfig, fail_fast) == (version >= (1, 0))
    late = "attention_dp_events_gather_period_ms"
    assert hasattr(e.KvCacheConfig, late) == (version >= (1, 1))
    if not backend:
        with pytest.raises(ModuleNotFoundError):
            standin.load("builder")
        return
    fields = standin.load("builder").BuildConfig.__dataclass_fields__
    assert ("auto_parallel_config" in fields) == (version < (1, 1))


def test_an_unknown_release_is_refused(standin: Standin, monkeypatch: Any) -> None:
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_VERSION", "0.19.0")
    with pytest.raises(ImportError, match=r"0\.19\.0"):
        standin.load()


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("INFO", ("[TensorRT-LLM][INFO] a\n[TensorRT-LLM][WARNING] b\n", "")),
        ("WARNING", ("", "[TensorRT-LLM][WARNING] b\n")),
        ("ERROR", ("", "")),
    ],
)
def test_the_level_of_cpp_decides_what_is_written_and_where(
    standin: Standin, monkeypatch: Any, capfd: Any, level: str, written: tuple[str, str]
) -> None:
    """Past sys.stdout: on descriptor 1 below WARNING, on 2 from there."""
    monkeypatch.setenv("TLLM_LOG_LEVEL", level)
    cpp = standin.load("bindings._cpp")
    capfd.readouterr()  # the banner
    for name, text in (("INFO", "a"), ("WARNING", "b")):
        cpp.log(name, text)
    assert capfd.readouterr() == written


@pytest.mark.parametrize(
    ("triple", "drafts"), [((1, 1, 0), 0), ((1, 2, 0), 0), ((2, 2, 1), 2), ((7, 7, 7), 83)]
)
def test_the_number_of_drafts_follows_from_the_triple(e: Any, triple: Any, drafts: int) -> None:
    config = e.LookaheadDecodingConfig(*triple)
    expected = (drafts + 1, triple[1], drafts, triple[1] - 1)
    assert config.calculate_speculative_resource() == expected


@pytest.mark.parametrize(
    ("triple", "text"),
    [
        ((1, 0, 0), "ngramSize requires >= 1"),
        ((0, 2, 1), "windowSize requires >= 1"),
        ((1, 1, 1), "ngramSize=1 requires verificationSetSize=0"),
        ((2, 1, 0), "ngramSize=1 requires windowSize=1"),
        ((2, 2, -1), "verificationSetSize requires >=0"),
    ],
)
def test_illegal_triples_are_assertions_of_cpp(e: Any, triple: Any, text: str) -> None:
    with pytest.raises(RuntimeError, match=rf"\[ERROR\] Assertion failed: {text} \(/.*\.cpp:\d+"):
        e.LookaheadDecodingConfig(*triple)


def test_arguments_that_are_not_bound_are_refused(e: Any) -> None:
    ten = (True, None, None, None, 0.5, None, True, None, None, 0)
    assert e.KvCacheConfig(*ten).free_gpu_memory_fraction == 0.5
    for refused in (
        e.LookaheadDecodingConfig,
        lambda: e.LookaheadDecodingConfig(4, 3, 4.0),
        lambda: e.LookaheadDecodingConfig(max_window_size=4, max_ngram_size=3, verification=4),
        lambda: e.SamplingConfig(1, 5),
        lambda: e.SamplingConfig(random_seed=1),
        lambda: e.ExecutorConfig(max_batchsize=4),
        lambda: e.ExecutorConfig(max_batch_size="4"),
        lambda: e.KvCacheConfig(*ten, True),
        lambda: e.Request([1], 1, True),
        lambda: e.Request([1], max_new_tokens=1),
        lambda: e.Request([1], 1, lookahead_config=(4, 3, 4)),
    ):
        with pytest.raises(TypeError, match=WRONG):
            refused()
    e.ExecutorConfig().note = "extra attributes are allowed"
    for fixed, name in (
        (e.LookaheadDecodingConfig(4, 3, 4), "max_window_size"),
        (e.Request([1], 1), "max_tokens"),
    ):
        with pytest.raises(AttributeError):
            setattr(fixed, name, 5)


def test_values_out_of_range_are_refused_but_not_a_requests_lookahead(e: Any) -> None:
    for refused in (
        *(lambda p=p: e.SamplingConfig(top_p=p) for p in (0.0, 1.5)),
        lambda: e.SamplingConfig(top_k=-1),
        lambda: e.SamplingConfig(temperature=-0.1),
        lambda: e.KvCacheConfig(free_gpu_memory_fraction=0.0),
        lambda: e.Request([], 1),
        lambda: e.Request([1], 0),
    ):
        with pytest.raises(RuntimeError, match="Assertion failed"):
            refused()
    config = e.SamplingConfig(top_p=1.0, temperature=0.7)
    with pytest.raises(RuntimeError, match="Assertion failed"):
        config.top_p = 0.0
    assert config.top_p == 1.0
    assert 0.7 != config.temperature == pytest.approx(0.7), "a C++ float"
    huge = e.LookaheadDecodingConfig(99, 99, 99)
    assert e.Request([1], 1, lookahead_config=huge).lookahead_config.max_ngram_size == 99


def test_the_decoding_mode_is_set_by_the_setter_of_its_config(e: Any) -> None:
    triple = e.LookaheadDecodingConfig(4, 3, 4)
    config = e.DecodingConfig()
    assert config.decoding_mode is None
    config.lookahead_decoding_config = triple
    assert config.decoding_mode.isLookahead()
    assert e.DecodingConfig(e.DecodingMode.Lookahead(), triple).decoding_mode.isLookahead()
    with pytest.raises(RuntimeError, match="Decoding mode must not be set with `setDecodingMode`"):
        config.decoding_mode = e.DecodingMode.Lookahead()
    with pytest.raises(RuntimeError, match="is set, but DecodingMode is not set \\("):
        e.DecodingConfig(lookahead_decoding_config=triple)
    with pytest.raises(RuntimeError, match="DecodingMode is not set to Lookahead"):
        e.DecodingConfig(e.DecodingMode.TopK(), triple)
    config.decoding_mode = e.DecodingMode.TopK()


def test_configs_have_pythons_defaults_and_are_copies_but_for_two(e: Any) -> None:
    config = e.ExecutorConfig(decoding_config=e.DecodingConfig())
    assert config.enable_chunked_context is False
    assert config.batching_type == e.BatchingType.INFLIGHT
    policy = config.scheduler_config.capacity_scheduler_policy
    assert policy == e.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    assert (config.iter_stats_max_iterations, config.request_stats_max_iterations) == (1000, 0)
    for name in ("max_batch_size", "max_num_tokens", "parallel_config"):
        assert getattr(config, name) is None
    config.decoding_config.lookahead_decoding_config = e.LookaheadDecodingConfig(4, 3, 4)
    assert config.decoding_config.lookahead_decoding_config is None, "a copy was changed"
    assert config.kv_cache_config.enable_block_reuse is True
    config.kv_cache_config.enable_block_reuse = False
    assert config.kv_cache_config.enable_block_reuse is False


def test_reading_the_wrong_half_of_a_response_throws(e: Any) -> None:
    bad, good = e.Response(1, "broken"), e.Response(2, e.Result(), 7)
    assert (bad.has_error(), bad.error_msg) == (True, "broken")
    assert (good.has_error(), good.client_id, good.result.is_final) == (False, 7, False)
    for response, name in ((bad, "result"), (good, "error_msg")):
        with pytest.raises(RuntimeError):
            getattr(response, name)


@pytest.mark.parametrize("standin", ["1.0.0", "1.1.0"], indirect=True)
@pytest.mark.usefixtures("fake_gpu")
def test_plugin_configs_are_slotted_first_and_pydantic_later(standin: Standin) -> None:
    plugin, slotted = standin.load("plugin").PluginConfig, standin.version == "1.0.0"
    config, wrong = plugin(), AssertionError if slotted else ValueError
    assert (config.tokens_per_block, config.use_paged_context_fmha) == (32, True)
    config.dtype, config.gemm_plugin = "bfloat16", "auto"
    assert config.gemm_plugin == "bfloat16", "auto reads as the model's type"
    assert config.to_dict()["gemm_plugin"] == "auto"
    with pytest.raises(wrong):
        config.gemm_plugin = "float8"
    with pytest.raises(wrong):
        config.tokens_per_block = "many"
    if slotted:
        with pytest.raises(TypeError):
            plugin(gemm_plugin="auto")
        with pytest.raises(AttributeError):
            config.no_such_plugin = None
        with pytest.raises(wrong):
            config.context_fmha = "enable"
    else:
        late = plugin(no_such_plugin=1, context_fmha="disable")
        assert not late.context_fmha
        assert not hasattr(late, "no_such_plugin"), "dropped in silence"


@pytest.mark.parametrize("standin", ["1.0.0", "1.2.1"], indirect=True)
def test_mappings_know_their_own_releases_keys_only(standin: Standin) -> None:
    mapping = standin.load("mapping").Mapping
    assert mapping(world_size=4, tp_size=2, pp_size=2, rank=3).pp_rank == 1
    for key in ("sequence_size", "auto_parallel")[: 2 if standin.version == "1.2.1" else 1]:
        with pytest.raises(TypeError, match=key):
            mapping.from_dict({key: False})
    with pytest.raises(ValueError, match="but got 3 != 2 \\* 1 \\* 1"):
        mapping(world_size=3, tp_size=2)
