"""The stand-in's names, types and defaults, in every release it plays."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.standin import Standin

pytestmark = pytest.mark.deep

EVERY = ["0.20.0", "0.21.0", "1.0.0", "1.1.0", "1.2.1", "1.3.0rc15"]
every_release = pytest.mark.parametrize("standin", EVERY, indirect=True)
WRONG = "incompatible .* arguments"


@pytest.fixture
def e(standin: Standin) -> Any:
    return standin.load("bindings.executor")


def names(cls: Any) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


@every_release
def test_each_release_has_what_it_had(standin: Standin, e: Any) -> None:
    version = tuple(int(part) for part in standin.version.split(".")[:2])
    backend = version < (1, 3)
    assert standin.load().__version__ == e.__version__ == standin.version
    assert hasattr(e, "Executor") == backend
    assert hasattr(e, "LookaheadDecodingConfig")
    assert ("lookahead_config" in names(e.Request)) == backend
    assert ("cache_salt_id" in names(e.Request)) == (version >= (1, 1))
    assert hasattr(e.Result(), "avg_decoded_tokens_per_iter") == (version >= (1, 1))
    config = names(e.ExecutorConfig)
    assert ("fail_fast_on_attention_window_too_large" in config) == (version >= (1, 0))
    assert ("attention_dp_events_gather_period_ms" in names(e.KvCacheConfig)) == (version >= (1, 1))
    if not backend:
        with pytest.raises(ModuleNotFoundError):
            standin.load("builder")
        return
    fields = standin.load("builder").BuildConfig.__dataclass_fields__
    assert ("auto_parallel_config" in fields) == (version < (1, 1))


@every_release
def test_importing_prints_the_banner_on_stdout(standin: Standin, capsys: Any) -> None:
    standin.load()
    expected = f"[TensorRT-LLM] TensorRT-LLM version: {standin.version}\n"
    assert capsys.readouterr().out == expected


def test_an_unknown_release_is_refused(standin: Standin, monkeypatch: Any) -> None:
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_VERSION", "0.19.0")
    with pytest.raises(ImportError, match=r"0\.19\.0"):
        standin.load()


@pytest.mark.parametrize(
    ("triple", "drafts"),
    [
        ((1, 1, 0), 0),
        ((1, 2, 0), 0),
        ((2, 2, 0), 1),
        ((2, 2, 1), 2),
        ((3, 3, 3), 11),
        ((4, 3, 4), 15),
        ((4, 4, 4), 23),
        ((5, 5, 5), 39),
        ((7, 7, 7), 83),
        ((8, 8, 8), 111),
    ],
)
def test_the_number_of_drafts_follows_from_the_triple(e: Any, triple: Any, drafts: int) -> None:
    config = e.LookaheadDecodingConfig(*triple)
    expected = (drafts + 1, triple[1], drafts, triple[1] - 1)
    assert config.calculate_speculative_resource() == expected
    assert e.LookaheadDecodingConfig.calculate_speculative_resource_tuple(*triple) == expected


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


def test_a_lookahead_config_has_no_more_than_python_binds(e: Any) -> None:
    with pytest.raises(TypeError, match=WRONG):
        e.LookaheadDecodingConfig()
    for wrong in ((4, 3), (4, 3, 4.0), ("4", 3, 4)):
        with pytest.raises(TypeError, match=WRONG):
            e.LookaheadDecodingConfig(*wrong)
    with pytest.raises(TypeError, match=WRONG):
        e.LookaheadDecodingConfig(max_window_size=4, max_ngram_size=3, verification=4)
    config = e.LookaheadDecodingConfig(4, 3, 4)
    with pytest.raises(AttributeError):
        config.max_window_size = 5
    assert not hasattr(config, "is_le")
    assert config != e.LookaheadDecodingConfig(4, 3, 4), "operator== is not bound"


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
    with pytest.raises(TypeError):
        e.DecodingMode()


def test_sampling_is_keyword_only_and_checked(e: Any) -> None:
    assert e.SamplingConfig().beam_width == 1
    assert e.SamplingConfig().top_k is e.SamplingConfig().temperature is None
    with pytest.raises(TypeError, match=WRONG):
        e.SamplingConfig(1, 5)
    with pytest.raises(TypeError, match=WRONG):
        e.SamplingConfig(random_seed=1)
    for wrong in ({"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}, {"temperature": -0.1}):
        with pytest.raises(RuntimeError, match="Assertion failed"):
            e.SamplingConfig(1, **wrong)
    config = e.SamplingConfig(top_p=1.0, top_k=0, temperature=0.0)
    with pytest.raises(RuntimeError, match="Assertion failed"):
        config.top_p = 0.0
    assert config.top_p == 1.0
    config.temperature = 0.7
    assert config.temperature == pytest.approx(0.7)
    assert config.temperature != 0.7, "a C++ float"


def test_the_executor_config_has_pythons_defaults(e: Any) -> None:
    config = e.ExecutorConfig()
    assert config.enable_chunked_context is False
    assert config.kv_cache_config.enable_block_reuse is True
    assert config.batching_type == e.BatchingType.INFLIGHT
    policy = config.scheduler_config.capacity_scheduler_policy
    assert policy == e.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    assert (config.iter_stats_max_iterations, config.request_stats_max_iterations) == (1000, 0)
    for name in ("max_batch_size", "max_num_tokens", "decoding_config", "parallel_config"):
        assert getattr(config, name) is None
    with pytest.raises(TypeError, match=WRONG):
        e.ExecutorConfig(max_batchsize=4)
    with pytest.raises(TypeError, match=WRONG):
        e.ExecutorConfig(max_batch_size="4")
    config.note = "extra attributes are allowed"


def test_configs_are_copies_but_for_the_two_that_are_references(e: Any) -> None:
    config = e.ExecutorConfig(decoding_config=e.DecodingConfig())
    config.decoding_config.lookahead_decoding_config = e.LookaheadDecodingConfig(4, 3, 4)
    assert config.decoding_config.lookahead_decoding_config is None
    config.kv_cache_config.enable_block_reuse = False
    assert config.kv_cache_config.enable_block_reuse is False
    assert copy.deepcopy(config).kv_cache_config.enable_block_reuse is False


def test_late_arguments_of_the_kv_cache_config_are_keyword_only(e: Any) -> None:
    ten = (True, None, None, None, 0.5, None, True, None, None, 0)
    assert e.KvCacheConfig(*ten).free_gpu_memory_fraction == 0.5
    with pytest.raises(TypeError, match=WRONG):
        e.KvCacheConfig(*ten, True)
    with pytest.raises(RuntimeError):
        e.KvCacheConfig(free_gpu_memory_fraction=0.0)


def test_requests_are_checked_but_their_lookahead_is_not(e: Any) -> None:
    request = e.Request([1, 2], 3)
    assert (request.input_token_ids, request.max_tokens) == ([1, 2], 3)
    assert request.streaming is False
    with pytest.raises(AttributeError):
        request.max_tokens = 4
    with pytest.raises(TypeError, match=WRONG):
        e.Request([1], 1, True)
    with pytest.raises(TypeError, match=WRONG):
        e.Request([1], max_new_tokens=1)
    with pytest.raises(TypeError, match=WRONG):
        e.Request([1], 1, lookahead_config=(4, 3, 4))
    with pytest.raises(RuntimeError, match=r"Assertion failed: !mInputTokenIds\.empty\(\)"):
        e.Request([], 1)
    with pytest.raises(RuntimeError, match="Assertion failed: mMaxNewTokens > 0"):
        e.Request([1], 0)
    huge = e.LookaheadDecodingConfig(99, 99, 99)
    assert e.Request([1], 1, lookahead_config=huge).lookahead_config.max_ngram_size == 99


@pytest.mark.parametrize("standin", ["1.3.0rc15"], indirect=True)
def test_the_release_after_the_removal_takes_no_lookahead_in_a_request(e: Any) -> None:
    with pytest.raises(TypeError, match=WRONG):
        e.Request([1], 1, lookahead_config=e.LookaheadDecodingConfig(4, 3, 4))


def test_reading_the_wrong_half_of_a_response_throws(e: Any) -> None:
    bad, good = e.Response(1, "broken"), e.Response(2, e.Result(), 7)
    assert (bad.has_error(), bad.error_msg) == (True, "broken")
    assert (good.has_error(), good.client_id, good.result.is_final) == (False, 7, False)
    with pytest.raises(RuntimeError):
        _ = bad.result
    with pytest.raises(RuntimeError):
        _ = good.error_msg


@pytest.mark.parametrize("standin", ["0.20.0", "1.0.0"], indirect=True)
def test_early_plugin_configs_are_slotted_and_take_no_arguments(standin: Standin) -> None:
    plugin = standin.load("plugin").PluginConfig
    with pytest.raises(TypeError):
        plugin(gemm_plugin="auto")
    config = plugin()
    assert (config.tokens_per_block, config.use_paged_context_fmha) == (32, True)
    config.dtype, config.gemm_plugin = "bfloat16", "auto"
    assert config.gemm_plugin == "bfloat16", "auto reads as the model's type"
    assert config.to_dict()["gemm_plugin"] == "auto"
    with pytest.raises(AttributeError):
        config.no_such_plugin = None
    with pytest.raises(AssertionError):
        config.context_fmha = "enable"
    with pytest.raises(AssertionError):
        config.gemm_plugin = "float8"


@pytest.mark.parametrize("standin", ["1.1.0", "1.2.1"], indirect=True)
@pytest.mark.usefixtures("fake_gpu")
def test_late_plugin_configs_ignore_unknown_names_and_check_values(standin: Standin) -> None:
    plugin = standin.load("plugin").PluginConfig
    config = plugin(gemm_plugin="auto", no_such_plugin=1, context_fmha="disable")
    assert (config.gemm_plugin, config.context_fmha) == ("float16", False)
    assert not hasattr(config, "no_such_plugin")
    with pytest.raises(ValueError, match="gemm_plugin"):
        plugin(gemm_plugin="float8")
    with pytest.raises(ValueError, match="tokens_per_block"):
        config.tokens_per_block = "many"


@pytest.mark.parametrize("standin", ["1.0.0", "1.2.1"], indirect=True)
def test_mappings_know_their_own_releases_keys_only(standin: Standin) -> None:
    mapping = standin.load("mapping").Mapping
    assert mapping(world_size=4, tp_size=2, pp_size=2, rank=3).pp_rank == 1
    old = {"auto_parallel": False}
    if standin.version == "1.0.0":
        assert mapping(**old).world_size == 1
    else:
        with pytest.raises(TypeError, match="auto_parallel"):
            mapping(**old)
    with pytest.raises(TypeError, match="sequence_size"):
        mapping.from_dict({"world_size": 1, "sequence_size": 1})
    with pytest.raises(ValueError, match="but got 3 != 2 \\* 1 \\* 1"):
        mapping(world_size=3, tp_size=2)


def test_subprocesses_see_the_release_its_metadata_and_the_gpu(
    standin: Standin, fake_gpu: str
) -> None:
    code = (
        "import importlib.metadata as m, torch; "
        "print(m.version('tensorrt-llm'), torch.cuda.get_device_capability())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1.2.1 (9, 0)\n"
    assert os.environ["TENSORRT_LLM_STANDIN_GPU"] == fake_gpu == "9.0"
