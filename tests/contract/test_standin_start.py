"""What the stand-in's executor refuses at its start, as the C++ one does."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.standin import Standin
from tests.support.standin_engines import (
    PROMPT,
    SERVER,
    asker,
    build,
    drain,
    open_executor,
    tokens,
)

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("fake_gpu")]


@pytest.fixture
def engine(standin: Standin, tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """An engine of (4,4,4)."""
    return build(standin, tiny_checkpoint, tmp_path / "engine")


def test_without_a_triple_the_default_one_is_taken_and_does_not_fit(
    standin: Standin, engine: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match=r"Assertion failed: 16 != 24 \("):
        open_executor(standin, engine, None)
    fits = build(standin, tiny_checkpoint, tmp_path / "of-15-drafts", (4, 3, 4))
    starts = open_executor(standin, fits, None)
    answers = drain(starts, asker(standin)(), asker(standin)())
    for (response,) in answers.values():
        assert "forwardAsync" in response.error_msg
        assert "Lookahead decoding config must be provided" in response.error_msg


def test_a_larger_triple_than_the_engines_is_an_assertion(standin: Standin, engine: Path) -> None:
    text = r"Assertion failed: maxDraftTokens <= mModelConfig.getMaxDecodingDraftTokens\(\)"
    with pytest.raises(RuntimeError, match=text):
        open_executor(standin, engine, (5, 5, 5))


def test_a_smaller_triple_starts_and_masks_wrongly_where_its_rows_are_shorter(
    standin: Standin, engine: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    assert tokens(drain(open_executor(standin, engine, (3, 3, 3)), asker(standin)())[1])
    large = build(standin, tiny_checkpoint, tmp_path / "of-39-drafts", (5, 5, 5))
    undefined = standin.load("_standin").StandinUndefinedBehaviour
    with pytest.raises(undefined, match="rows of another width"):
        drain(open_executor(standin, large, (4, 4, 4)), asker(standin)())


def test_a_triple_without_drafts_is_not_known_to_work(standin: Standin, engine: Path) -> None:
    undefined = standin.load("_standin").StandinUndefinedBehaviour
    with pytest.raises(undefined):
        open_executor(standin, engine, (1, 1, 0))


def test_sizes_above_the_engines_are_refused(standin: Standin, engine: Path, capfd: Any) -> None:
    with pytest.raises(RuntimeError, match=r"max batch size \(5\) must not exceed engine max .*4"):
        open_executor(standin, engine, max_batch_size=5)
    with pytest.raises(RuntimeError, match=r"max beam width \(2\) must not exceed engine max"):
        open_executor(standin, engine, max_beam_width=2)
    open_executor(standin, engine, max_num_tokens=9999)
    assert "(9999) is larger than model max num tokens (512)" in capfd.readouterr().out


def test_beams_and_lookahead_exclude_each_other(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    folder = build(standin, tiny_checkpoint, tmp_path, max_beam_width=2)
    with pytest.raises(RuntimeError, match=r"Beam width must be 1 in Lookahead decoding\."):
        open_executor(standin, folder, max_beam_width=2)


def test_static_batching_is_refused(standin: Standin, engine: Path) -> None:
    static = standin.load("bindings.executor").BatchingType.STATIC
    with pytest.raises(RuntimeError, match=r"^Static batching type is deprecated\. Please use"):
        open_executor(standin, engine, batching_type=static)


def test_prompts_must_fit_into_a_step_without_context_fmha(
    standin: Standin, engine: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    open_executor(standin, engine, max_num_tokens=50)
    old = build(standin, tiny_checkpoint, tmp_path / "old", plugin={"context_fmha": False})
    open_executor(standin, old)
    with pytest.raises(RuntimeError, match=r"max context length \(64\) needs .* tokens \(50\)\."):
        open_executor(standin, old, max_num_tokens=50)


@pytest.mark.parametrize(
    ("plugin", "given", "longest"),
    [
        ({}, {}, 150),
        ({}, {"max_num_tokens": 70}, 70),
        ({}, {"max_num_tokens": 70, "enable_chunked_context": True}, 150),
        ({"context_fmha": False}, {}, 64),
    ],
)
def test_the_longest_prompt_depends_on_context_fmha_and_chunks(
    standin: Standin,
    tiny_checkpoint: Path,
    tmp_path: Path,
    capfd: Any,
    plugin: Any,
    given: Any,
    longest: int,
) -> None:
    folder = build(standin, tiny_checkpoint, tmp_path, plugin=plugin)
    open_executor(standin, folder, **given)
    assert f"TRTGptModel maxInputLen: {longest}\n" in capfd.readouterr().out


def test_a_small_pool_shortens_sequences_or_fails_fast(
    standin: Standin, engine: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_KV_TOKENS", "100")
    with open_executor(standin, engine) as executor:
        assert "maxSequenceLen is reduced to maxAttentionWindow: 90" in capfd.readouterr().out
        (responses,) = drain(executor, asker(standin)(length=90)).values()
        assert len(tokens(responses)) == 90 - 23 - len(PROMPT)
    with pytest.raises(RuntimeError, match=r"^Attention window too large to fit even a single"):
        open_executor(standin, engine, fail_fast_on_attention_window_too_large=True)


@pytest.mark.parametrize("standin", ["0.21.0"], indirect=True)
def test_old_releases_cannot_fail_fast(standin: Standin) -> None:
    config = standin.load("bindings.executor").ExecutorConfig
    assert not hasattr(config(), "fail_fast_on_attention_window_too_large")


def test_memory_is_free_again_when_the_object_is_gone(
    standin: Standin, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_KV_TOKENS", "200")
    strict = {"fail_fast_on_attention_window_too_large": True}
    first = open_executor(standin, engine, **strict)
    first.shutdown()
    with pytest.raises(RuntimeError, match="Attention window too large"):
        open_executor(standin, engine, **strict)
    del first
    second = open_executor(standin, engine, **strict)
    second.__exit__(None, None, None)
    open_executor(standin, engine, **strict)
    with pytest.raises(standin.load("_standin").StandinUndefinedBehaviour, match="destroyed"):
        second.can_enqueue_requests()


def test_an_engine_without_packed_input_is_refused(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    plugin = {"remove_input_padding": False}
    folder = build(standin, tiny_checkpoint, tmp_path, plugin=plugin)
    with pytest.raises(RuntimeError, match="packed input and paged KV cache"):
        open_executor(standin, folder)


def test_features_without_paged_context_fmha_go_off_with_a_warning(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path, capfd: Any
) -> None:
    plugin = {"use_paged_context_fmha": False}
    folder = build(standin, tiny_checkpoint, tmp_path, plugin=plugin)
    open_executor(standin, folder, enable_chunked_context=True)
    out = capfd.readouterr().out
    assert "KV cache reuse disabled" in out
    assert "Chunked context disabled" in out


def test_an_engine_without_drafts_or_keys_does_not_load(standin: Standin, engine: Path) -> None:
    config = json.loads((engine / "config.json").read_text())
    config["build_config"]["max_draft_len"] = 0
    (engine / "config.json").write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match="max_draft_len has to be larger than 0 for Lookahead"):
        open_executor(standin, engine)
    config["build_config"]["kv_cache_type"] = "SOMETHING"
    config["build_config"]["max_draft_len"] = 23
    (engine / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="Invalid KV cache type: SOMETHING"):
        open_executor(standin, engine)
    del config["build_config"]["max_batch_size"]
    (engine / "config.json").write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match="key 'max_batch_size' not found"):
        open_executor(standin, engine)


def test_engines_belong_to_their_release_and_gpu(
    standin: Standin, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = (engine / "rank0.engine").read_bytes()
    for old, new, text in (
        (b'"1.2.1"', b'"1.1.0"', "not compatible with this version of TensorRT"),
        (b'"sm": 90', b'"sm": 86', "expecting compute 9.0 got compute 8.6"),
        (b"TLLM-STANDIN", b"SOMETHING-ELSE", "Magic tag does not match"),
    ):
        (engine / "rank0.engine").write_bytes(blob.replace(old, new, 1))
        with pytest.raises(RuntimeError, match=f"(?s){text}.*Failed to deserialize cuda engine"):
            open_executor(standin, engine)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(RuntimeError, match="no CUDA-capable device is detected"):
        open_executor(standin, engine)


@pytest.mark.parametrize("triple", [SERVER, (1, 2, 0), (1, 1, 0)])
def test_a_plain_engine_does_not_start_with_a_lookahead_configuration(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path, capfd: Any, triple: Any
) -> None:
    folder = build(standin, tiny_checkpoint, tmp_path, (1, 1, 0))
    with pytest.raises(RuntimeError, match="module is not set to decoder domain"):
        open_executor(standin, folder, triple)
    assert "Model is not built with Lookahead decoding" in capfd.readouterr().out


def test_arguments_have_the_bound_types(standin: Standin, engine: Path) -> None:
    e = standin.load("bindings.executor")
    config = e.ExecutorConfig()
    for wrong in ((engine, 0, config), (engine, e.ModelType.DECODER_ONLY), (7, None, config)):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            e.Executor(*wrong)
    config.decoding_config = e.DecodingConfig(
        e.DecodingMode.Lookahead(), e.LookaheadDecodingConfig(*SERVER)
    )
    blob, text = (engine / "rank0.engine").read_bytes(), (engine / "config.json").read_text()
    e.Executor(blob, text, e.ModelType.DECODER_ONLY, config)


def test_cpp_writes_notes_past_sys_stdout_unless_the_level_is_warning(
    standin: Standin, engine: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    open_executor(standin, engine)
    assert "[TensorRT-LLM][INFO] TRTGptModel maxBatchSize: 4" in capfd.readouterr().out
    for name in ("bindings._cpp", "bindings._start"):
        del __import__("sys").modules[f"tensorrt_llm.{name}"]
    monkeypatch.setenv("TLLM_LOG_LEVEL", "WARNING")
    cpp = standin.load("bindings._cpp")
    cpp.log("INFO", "not shown")
    cpp.log("WARNING", "shown")
    assert capfd.readouterr() == ("", "[TensorRT-LLM][WARNING] shown\n")


@pytest.mark.parametrize("size", [1, 2])
def test_the_number_of_processes_is_the_engines(
    standin: Standin, engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_MPI_DIR", str(tmp_path))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", str(size))
    assert standin.load().mpi_world_size() == size
    if size == 1:
        assert open_executor(standin, engine).can_enqueue_requests()
        return
    with pytest.raises(RuntimeError, match=r"MPI worldSize is expected to be equal to tp\*pp\*cp"):
        open_executor(standin, engine)


def test_ranks_serve_until_the_leader_shuts_down(
    standin: Standin,
    tiny_checkpoint: Path,
    tiny_checkpoint_tp2_pp2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = build(standin, tiny_checkpoint, tmp_path / "whole", (1, 1, 0))
    split = build(standin, tiny_checkpoint_tp2_pp2, tmp_path / "split", (1, 1, 0))
    expected = tokens(drain(open_executor(standin, whole, None), asker(standin)())[1])
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_MPI_DIR", str(tmp_path))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    ranks = []
    for rank in ("0", "3"):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        monkeypatch.setattr(standin.load("bindings._mpi"), "_numbers", iter([0]))
        ranks.append(open_executor(standin, split, None))
    leader, server = ranks
    assert (leader.can_enqueue_requests(), server.can_enqueue_requests()) == (True, False)
    for call in (lambda: server.enqueue_request(asker(standin)(PROMPT)), server.await_responses):
        with pytest.raises(RuntimeError, match="only leader rank is expected to call"):
            call()
    assert tokens(drain(leader, asker(standin)())[1]) == expected
    waiting = threading.Thread(target=server.shutdown)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    leader.shutdown()
    waiting.join(5)
    assert not waiting.is_alive()
    with pytest.raises(RuntimeError, match=r"Assertion failed: Shutdown called \("):
        leader.await_responses(timeout=timedelta(0))
