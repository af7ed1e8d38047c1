"""How the stand-in's executor starts, decodes, answers and fails, as the C++ one does.

Where C++ has no defined answer, the stand-in raises, and goes on raising.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.standin import Standin
from tests.support.standin_engines import (
    OTHER,
    PROMPT,
    SERVER,
    Ask,
    asker,
    build,
    drain,
    open_executor,
    reference,
    tokens,
)
from tests.support.unchanged import STAND_IN_SOURCES

pytestmark = [
    STAND_IN_SOURCES,
    pytest.mark.deep,
    pytest.mark.usefixtures("fake_gpu"),
]
NOW = timedelta(0)
FAIL_FAST = {"fail_fast_on_attention_window_too_large": True}
Open = Callable[..., Any]


@pytest.fixture
def ask(standin: Standin) -> Ask:
    return asker(standin)


@pytest.fixture
def undefined(standin: Standin) -> type[Exception]:
    error: type[Exception] = standin.load("_standin").StandinUndefinedBehaviour
    return error


@pytest.fixture
def opened(standin: Standin, tiny_checkpoint: Path, tmp_path: Path) -> Open:
    """Builds an engine of `built` and opens it with `triple`; both are (4,4,4) unless told."""

    def one(triple: Any = SERVER, built: Any = SERVER, limits: Any = None, **given: Any) -> Any:
        folder = tmp_path / f"{built}-{limits}"
        if not folder.exists():
            build(standin, tiny_checkpoint, folder, built, **(limits or {}))
        return open_executor(standin, folder, triple, **given)

    return one


@pytest.fixture
def executor(opened: Open) -> Any:
    return opened()


@pytest.fixture
def plain(opened: Open) -> Any:
    return opened(None, (1, 1, 0))


@pytest.fixture(scope="module")
def text(tiny_checkpoint: Path) -> list[int]:
    return reference(tiny_checkpoint, PROMPT, 40)


def finish(responses: list[Any]) -> str:
    (reason,) = responses[-1].result.finish_reasons
    return str(reason.name)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"triple": None}, r"Assertion failed: 16 != 24 \("),
        ({"triple": (5, 5, 5)}, r"maxDraftTokens <= mModelConfig.getMaxDecodingDraftTokens\(\)"),
        ({"built": (1, 1, 0)}, "module is not set to decoder domain"),
        ({"built": (1, 1, 0), "triple": (1, 2, 0)}, "module is not set to decoder domain"),
        ({"max_batch_size": 5}, r"max batch size \(5\) must not exceed engine max .*4"),
        ({"max_beam_width": 2}, r"max beam width \(2\) must not exceed engine max"),
        (
            {"limits": {"max_beam_width": 2}, "max_beam_width": 2},
            r"Beam width must be 1 in Lookahead decoding\.",
        ),
        (
            {"limits": {"plugin": {"context_fmha": False}}, "max_num_tokens": 50},
            r"max context length \(64\) needs .* tokens \(50\)\.",
        ),
        (
            {"limits": {"plugin": {"remove_input_padding": False}}},
            "packed input and paged KV cache",
        ),
        (FAIL_FAST, r"^Attention window too large to fit even a single"),
    ],
)
def test_what_does_not_start(
    opened: Open, start: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if start is FAIL_FAST:
        monkeypatch.setenv("TENSORRT_LLM_STANDIN_KV_TOKENS", "100")
    with pytest.raises(RuntimeError, match=message):
        opened(**start)


def test_static_batching_and_wrong_arguments_are_refused(
    standin: Standin, opened: Open, tmp_path: Path
) -> None:
    e = standin.load("bindings.executor")
    with pytest.raises(RuntimeError, match=r"^Static batching type is deprecated\. Please use"):
        opened(batching_type=e.BatchingType.STATIC)
    config = e.ExecutorConfig()
    for wrong in ((tmp_path, 0, config), (tmp_path, e.ModelType.DECODER_ONLY), (7, None, config)):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            e.Executor(*wrong)


@pytest.mark.parametrize(
    ("limits", "given", "note"),
    [
        ({}, {}, "TRTGptModel maxInputLen: 150\n"),
        ({}, {"max_num_tokens": 70}, "TRTGptModel maxInputLen: 70\n"),
        ({}, {"max_num_tokens": 70, "enable_chunked_context": True}, "maxInputLen: 150\n"),
        ({}, {"max_num_tokens": 9999}, "(9999) is larger than model max num tokens (512)"),
        ({"plugin": {"context_fmha": False}}, {}, "TRTGptModel maxInputLen: 64\n"),
        ({"plugin": {"use_paged_context_fmha": False}}, {}, "KV cache reuse disabled"),
        (
            {"plugin": {"use_paged_context_fmha": False}},
            {"enable_chunked_context": True},
            "Chunked context disabled",
        ),
    ],
)
def test_what_the_start_settles_is_logged_past_sys_stdout(
    opened: Open, limits: Any, given: Any, note: str, capfd: Any
) -> None:
    """The longest prompt depends on context FMHA and chunks."""
    opened(limits=limits, **given)
    assert note in capfd.readouterr().out


def test_the_default_triple_starts_where_it_fits_and_fails_at_the_first_request(
    opened: Open, ask: Ask
) -> None:
    for (response,) in drain(opened(None, (4, 3, 4)), ask(), ask()).values():
        assert "forwardAsync" in response.error_msg
        assert "Lookahead decoding config must be provided" in response.error_msg


def test_other_triples_than_the_engines_are_not_known_to_work(
    opened: Open, ask: Ask, undefined: type[Exception]
) -> None:
    assert tokens(drain(opened((3, 3, 3)), ask())[1]), "a smaller one does"
    with pytest.raises(undefined, match="rows of another width"):
        drain(opened((4, 4, 4), (5, 5, 5)), ask())
    with pytest.raises(undefined, match="without drafts"):
        opened((1, 1, 0))


def test_a_small_pool_shortens_sequences(
    opened: Open, ask: Ask, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_KV_TOKENS", "100")
    (responses,) = drain(opened(), ask(length=90)).values()
    assert len(tokens(responses)) == 90 - 23 - len(PROMPT), "0.9 of the pool, and room for drafts"
    assert "maxSequenceLen is reduced to maxAttentionWindow: 90" in capfd.readouterr().out


def test_memory_is_free_again_when_the_object_is_gone(
    opened: Open, monkeypatch: pytest.MonkeyPatch, undefined: type[Exception]
) -> None:
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_KV_TOKENS", "200")
    first = opened(**FAIL_FAST)
    first.shutdown()
    with pytest.raises(RuntimeError, match="Attention window too large"):
        opened(**FAIL_FAST)
    first.__exit__(None, None, None)
    opened(**FAIL_FAST)
    with pytest.raises(undefined, match="destroyed"):
        first.can_enqueue_requests()


def test_engines_need_their_keys(standin: Standin, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = build(standin, tiny_checkpoint, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for key, value, error, message in (
        ("max_draft_len", 0, RuntimeError, "max_draft_len has to be larger than 0 for Lookahead"),
        ("kv_cache_type", "SOMETHING", ValueError, "Invalid KV cache type: SOMETHING"),
        ("max_batch_size", None, RuntimeError, "key 'max_batch_size' not found"),
    ):
        changed = {**config["build_config"], key: value}
        if value is None:
            del changed[key]
        (folder / "config.json").write_text(json.dumps({**config, "build_config": changed}))
        with pytest.raises(error, match=message):
            open_executor(standin, folder)


def test_engines_belong_to_their_release_and_gpu(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(standin, tiny_checkpoint, tmp_path)
    blob = (folder / "rank0.engine").read_bytes()
    for old, new, text in (
        (b'"1.2.1"', b'"1.1.0"', "not compatible with this version of TensorRT"),
        (b'"sm": 90', b'"sm": 86', "expecting compute 9.0 got compute 8.6"),
        (b"TLLM-STANDIN", b"SOMETHING-ELSE", "Magic tag does not match"),
    ):
        (folder / "rank0.engine").write_bytes(blob.replace(old, new, 1))
        with pytest.raises(RuntimeError, match=f"(?s){text}.*Failed to deserialize cuda engine"):
            open_executor(standin, folder)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(RuntimeError, match="no CUDA-capable device is detected"):
        open_executor(standin, folder)


def test_ranks_serve_until_the_leader_shuts_down(
    standin: Standin,
    opened: Open,
    plain: Any,
    ask: Ask,
    tiny_checkpoint_tp2_pp2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undefined: type[Exception],
) -> None:
    expected = tokens(drain(plain, ask())[1])
    split = build(standin, tiny_checkpoint_tp2_pp2, tmp_path / "split", (1, 1, 0))
    staged = build(standin, tiny_checkpoint_tp2_pp2, tmp_path / "staged")
    monkeypatch.setenv("TENSORRT_LLM_STANDIN_MPI_DIR", str(tmp_path))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(RuntimeError, match=r"MPI worldSize is expected to be equal to tp\*pp\*cp"):
        opened()
    with pytest.raises(undefined, match="pipeline stage"):
        drain(open_executor(standin, staged), ask())
    ranks = []
    for rank in ("0", "3"):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        monkeypatch.setattr(standin.load("bindings._machine"), "_numbers", iter([0]))
        ranks.append(open_executor(standin, split, None))
    leader, server = ranks
    assert (leader.can_enqueue_requests(), server.can_enqueue_requests()) == (True, False)
    for call in (lambda: server.enqueue_request(ask()), server.await_responses):
        with pytest.raises(RuntimeError, match="only leader rank is expected to call"):
            call()
    assert tokens(drain(leader, ask())[1]) == expected
    waiting = threading.Thread(target=server.shutdown)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    leader.shutdown()
    waiting.join(120)
    assert not waiting.is_alive()


def test_every_triple_gives_the_greedy_text(executor: Any, ask: Ask, text: list[int]) -> None:
    triples = [(4, 4, 4), (1, 1, 0), (2, 2, 1), (1, 2, 0), (3, 4, 2)]
    answers = drain(executor, *[ask(length=40, lookahead=triple) for triple in triples])
    assert list(answers) == [1, 2, 3, 4, 5], "ids begin at 1 and increase"
    for responses, (_, n, g) in zip(answers.values(), triples, strict=True):
        assert tokens(responses) == text
        lengths = [len(r.result.output_token_ids[0]) for r in responses]
        assert lengths[0] == 1, "the prompt gives one token"
        assert max(lengths) <= n
        assert (max(lengths) > 1) == (g > 0)
        assert [r.result.decoding_iter for r in responses] == list(range(1, len(lengths) + 1))
        average = responses[-1].result.avg_decoded_tokens_per_iter
        assert average == pytest.approx(40 / len(lengths))


def test_what_a_response_holds(executor: Any, ask: Ask, standin: Standin, text: list[int]) -> None:
    exclude = standin.load("bindings.executor").OutputConfig(exclude_input_from_output=True)
    both = (ask(streaming=False, client_id=77), ask(streaming=False, output_config=exclude))
    answers = drain(executor, *both)
    (whole,), (output,) = answers[1], answers[2]
    assert whole.client_id == 77
    assert whole.result.output_token_ids == [PROMPT + text[:16]]
    assert output.result.output_token_ids == [text[:16]]
    assert whole.result.is_final
    assert whole.result.is_sequence_final


def test_the_end_token_is_dropped_and_too_many_tokens_are_lowered(
    executor: Any, ask: Ask, text: list[int], capfd: Any
) -> None:
    for place in (0, 5, 9):
        (responses,) = drain(executor, ask(end_id=text[place])).values()
        assert tokens(responses) == text[: text.index(text[place])]
        assert finish(responses) == "END_ID"
    (responses,) = drain(executor, ask(end_id=-1, length=120)).values()
    assert finish(responses) == "LENGTH"
    assert len(tokens(responses)) == 128 - len(PROMPT), "the drafts' room is not for output"
    warning = f"({len(PROMPT)} + 120 + 23) exceeds maximum sequence length (151). Number of"
    assert warning in capfd.readouterr().out


def test_an_oversized_triple_ends_every_active_request(executor: Any, ask: Ask) -> None:
    innocent = executor.enqueue_request(ask(length=40))
    assert tokens(executor.await_responses(innocent))
    both = executor.enqueue_requests([ask(lookahead=(4, 4, 5)), ask()])
    for number in (innocent, *both):
        (response,) = executor.await_responses(number)
        assert response.error_msg.startswith("Encountered an error in forwardAsync function: ")
        assert "lookahead requires setup g (5) <= max_g (4)" in response.error_msg
    assert tokens(drain(executor, ask())[4]), "the executor goes on"


def test_a_bad_request_ends_alone(
    executor: Any, ask: Ask, standin: Standin, text: list[int]
) -> None:
    output = standin.load("bindings.executor").OutputConfig
    answers = drain(
        executor,
        ask(),
        ask(range(151)),
        ask(end_id=258),
        ask(output_config=output(return_context_logits=True)),
        ask(output_config=output(return_generation_logits=True)),
    )
    assert tokens(answers[1]) == text[:16]
    for number, part in (
        (2, "Prompt length (151) exceeds maximum input length (150). Set log level to info"),
        (3, "EndId (258) is not within acceptable range [-1, 258)."),
        (4, "Return context logit need to build engine with gather_context_logits"),
        (5, "gather_generation_logits must be enabled in ExecutorConfig"),
    ):
        (response,) = answers[number]
        assert response.error_msg.startswith("Encountered an error when fetching new request: ")
        assert part in response.error_msg


def test_lookahead_ignores_sampling_and_plain_engines_a_triple_in_silence(
    executor: Any, plain: Any, ask: Ask, standin: Standin, text: list[int]
) -> None:
    sampling = standin.load("bindings.executor").SamplingConfig
    hot = [ask(sampling_config=sampling(top_k=50, temperature=5.0, seed=n)) for n in range(3)]
    assert all(tokens(responses) == text[:16] for responses in drain(executor, *hot).values())
    texts = [[tokens(responses) for responses in drain(plain, *hot).values()] for _ in range(2)]
    assert texts[0] == texts[1], "a seed decides"
    assert len({tuple(one) for one in texts[0]}) == 3
    for greedy in (sampling(), sampling(top_k=1, temperature=5.0), sampling(temperature=5.0)):
        request = ask(sampling_config=greedy, lookahead=(4, 4, 4))
        (responses,) = drain(plain, request).values()
        assert tokens(responses) == text[:16]
        assert responses[-1].result.decoding_iter == 16


def test_cancelling_gives_a_last_response(executor: Any, ask: Ask, text: list[int]) -> None:
    ids = executor.enqueue_requests([ask(length=40), ask(OTHER)])
    first = executor.await_responses(ids[0])
    executor.cancel_request(ids[0])
    executor.cancel_request(99)
    last = executor.await_responses(ids[0])
    assert tokens(first + last) == text[: len(tokens(first + last))]
    assert last[-1].result.is_final
    assert finish(last) == "CANCELLED"
    executor.cancel_request(ids[0])
    (again,) = executor.await_responses(ids[0])
    text_of_it = f"ReqId {ids[0]} has already been processed and was terminated."
    assert again.error_msg == text_of_it
    while not executor.await_responses(ids[1])[-1].result.is_final:
        pass


def test_the_queue_is_bounded_and_the_batch_too(opened: Open, ask: Ask) -> None:
    executor = opened(max_queue_size=3, max_batch_size=2)
    with pytest.raises(RuntimeError, match=r"^Maximum queue size of 3 has been reached, "):
        executor.enqueue_requests([ask() for _ in range(4)])
    assert len(drain(executor, *[ask(length=4) for _ in range(3)])) == 3
    stats = executor.get_latest_iteration_stats()
    assert max(record.num_active_requests for record in stats) == 2
    assert stats[0].max_num_active_requests == 2
    assert sum(record.num_completed_requests for record in stats) == 3
    assert executor.get_latest_iteration_stats() == [], "reading drains them"


def test_statistics_of_iterations(executor: Any, ask: Ask) -> None:
    answers = drain(executor, ask(length=40))
    iterations = executor.get_latest_iteration_stats()
    assert len(iterations) == len(answers[1]) + 1, "one more when everything has ended"
    assert iterations[0].inflight_batching_stats.num_context_requests == 1
    last = iterations[-1]
    assert (last.iter_latency_ms, last.inflight_batching_stats.num_scheduled_requests) == (0.0, 0)
    time.sleep(0.05)
    drain(executor, ask(length=3))
    late = executor.get_latest_iteration_stats()
    assert late[0].iter_latency_ms > 0.0, "the last pass of the batch before"
    assert late[1].iter_latency_ms >= 50.0, "the pause is in the first pass after it"


def test_an_iteration_holds_max_num_tokens_at_most(
    opened: Open, ask: Ask, text: list[int], undefined: type[Exception]
) -> None:
    limits = {"max_num_tokens": 96}
    executor = opened(limits=limits, max_num_tokens=64)
    answers = drain(executor, *[ask() for _ in range(4)])
    assert all(tokens(responses) == text[:16] for responses in answers.values())
    stats = executor.get_latest_iteration_stats()
    scheduled = [one.inflight_batching_stats.num_scheduled_requests for one in stats]
    assert max(scheduled) < 4, "20 tokens of a prompt, 24 of a step"
    chunked = opened(limits=limits, enable_chunked_context=True)
    assert len(tokens(drain(chunked, ask(range(97), 4))[1])) == 4, "alone it is fine"
    with pytest.raises(undefined, match="chunk"):
        drain(chunked, ask(), ask(), ask(), ask(range(97), 4))


@pytest.mark.parametrize("policy", ["MAX_UTILIZATION", "STATIC_BATCH"])
def test_a_stream_that_could_be_evicted_must_fit_as_a_prompt(
    standin: Standin, opened: Open, ask: Ask, policy: str
) -> None:
    e = standin.load("bindings.executor")
    scheduler = e.SchedulerConfig(getattr(e.CapacitySchedulerPolicy, policy))
    executor = opened(scheduler_config=scheduler, max_num_tokens=64)
    answers = drain(executor, ask(length=45), ask(length=46), ask(length=46, streaming=False))
    assert finish(answers[1]) == finish(answers[3]) == "LENGTH"
    assert "potentially greater than max input length" in answers[2][0].error_msg


def test_nothing_works_after_shutdown(executor: Any, ask: Ask) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        executor.await_responses(timeout=0.1)
    assert executor.can_enqueue_requests()
    for _ in range(2):
        executor.shutdown()
    assert not executor.can_enqueue_requests()
    with pytest.raises(RuntimeError, match="Shutdown called, cannot enqueue requests"):
        executor.enqueue_request(ask())
    for call in (lambda: executor.cancel_request(1), executor.await_responses):
        with pytest.raises(RuntimeError, match=r"Shutdown called \("):
            call()


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"prompt": [65, 66]}, "prompt of 2 tokens and N is 4"),
        ({"prompt": [65, 300, 66]}, "token id 300"),
        ({"prompt": [65] * 100}, "max_tokens was lowered to 0"),
    ],
)
def test_undefined_behaviour_is_loud_and_final(
    opened: Open, ask: Ask, undefined: type[Exception], given: Any, what: str
) -> None:
    executor = opened(limits={"max_input_len": 100, "max_seq_len": 100})
    executor.enqueue_request(ask(**given))
    for _ in range(2):
        with pytest.raises(undefined, match=what):
            executor.await_responses(timeout=NOW)
    with pytest.raises(undefined):
        executor.enqueue_request(ask())


def test_waiting_for_nothing_would_never_end(executor: Any, undefined: type[Exception]) -> None:
    assert executor.await_responses(timeout=timedelta(milliseconds=30)) == []
    with pytest.raises(undefined, match="for ever"):
        executor.await_responses()
