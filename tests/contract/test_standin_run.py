"""How the stand-in's executor decodes, answers and fails, as the C++ one does."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.standin import Standin
from tests.support.standin_engines import (
    OTHER,
    PROMPT,
    Ask,
    asker,
    build,
    drain,
    open_executor,
    reference,
    tokens,
)

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("fake_gpu")]
NOW = timedelta(0)


@pytest.fixture
def ask(standin: Standin) -> Ask:
    return asker(standin)


@pytest.fixture
def executor(standin: Standin, tiny_checkpoint: Path, tmp_path: Path) -> Any:
    """On an engine of (4,4,4)."""
    return open_executor(standin, build(standin, tiny_checkpoint, tmp_path / "engine"))


@pytest.fixture
def plain(standin: Standin, tiny_checkpoint: Path, tmp_path: Path) -> Any:
    folder = build(standin, tiny_checkpoint, tmp_path / "plain", (1, 1, 0))
    return open_executor(standin, folder, None)


@pytest.fixture(scope="module")
def text(tiny_checkpoint: Path) -> list[int]:
    return reference(tiny_checkpoint, PROMPT, 40)


def finish(responses: list[Any]) -> str:
    (reason,) = responses[-1].result.finish_reasons
    return str(reason.name)


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


def test_a_plain_engine_gives_it_too(plain: Any, ask: Ask, text: list[int]) -> None:
    assert tokens(drain(plain, ask(length=40))[1]) == text


def test_what_a_response_holds(executor: Any, ask: Ask, standin: Standin, text: list[int]) -> None:
    exclude = standin.load("bindings.executor").OutputConfig(exclude_input_from_output=True)
    answers = drain(
        executor,
        ask(streaming=False, client_id=77),
        ask(streaming=False, output_config=exclude),
    )
    (whole,), (output,) = answers[1], answers[2]
    assert whole.client_id == 77
    assert whole.result.output_token_ids == [PROMPT + text[:16]]
    assert output.result.output_token_ids == [text[:16]]
    assert whole.result.is_final
    assert whole.result.is_sequence_final


def test_the_end_token_is_dropped(executor: Any, ask: Ask, text: list[int]) -> None:
    for place in (0, 5, 9):
        (responses,) = drain(executor, ask(end_id=text[place])).values()
        assert tokens(responses) == text[: text.index(text[place])]
        assert finish(responses) == "END_ID"
    (responses,) = drain(executor, ask(end_id=-1)).values()
    assert finish(responses) == "LENGTH"


def test_too_many_tokens_are_lowered_with_a_warning(executor: Any, ask: Ask, capfd: Any) -> None:
    (responses,) = drain(executor, ask(length=120)).values()
    assert len(tokens(responses)) == 128 - len(PROMPT), "the drafts' room is not for output"
    warning = f"({len(PROMPT)} + 120 + 23) exceeds maximum sequence length (151). Number of"
    assert warning in capfd.readouterr().out


def test_an_oversized_triple_ends_every_active_request(executor: Any, ask: Ask) -> None:
    innocent = executor.enqueue_request(ask(length=40))
    assert tokens(executor.await_responses(innocent))
    both = executor.enqueue_requests([ask(lookahead=(4, 4, 5)), ask()])
    for (response,) in executor.await_responses([innocent, *both]):
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


def test_a_short_prompt_is_fine_with_a_small_ngram(
    executor: Any, ask: Ask, tiny_checkpoint: Path
) -> None:
    expected = reference(tiny_checkpoint, [65], 16)
    for triple in ((4, 2, 4), (1, 1, 0)):
        (responses,) = drain(executor, ask([65], lookahead=triple)).values()
        assert tokens(responses) == expected


def test_a_request_triple_on_a_plain_engine_is_ignored(
    plain: Any, ask: Ask, text: list[int]
) -> None:
    (responses,) = drain(plain, ask(lookahead=(4, 4, 4))).values()
    assert tokens(responses) == text[:16]
    assert responses[-1].result.decoding_iter == 16


def test_lookahead_ignores_sampling_in_silence(
    executor: Any, plain: Any, ask: Ask, standin: Standin, text: list[int]
) -> None:
    sampling = standin.load("bindings.executor").SamplingConfig
    hot = [sampling(top_k=50, top_p=1.0, temperature=5.0, seed=seed) for seed in range(3)]
    answers = drain(executor, *[ask(sampling_config=config) for config in hot])
    assert all(tokens(responses) == text[:16] for responses in answers.values())
    texts = [tokens(r) for r in drain(plain, *[ask(sampling_config=c) for c in hot]).values()]
    assert len({tuple(t) for t in texts}) == 3
    again = [tokens(r) for r in drain(plain, *[ask(sampling_config=c) for c in hot]).values()]
    assert again == texts, "a seed decides"
    for greedy in (sampling(), sampling(top_k=1, temperature=5.0), sampling(temperature=5.0)):
        (responses,) = drain(plain, ask(sampling_config=greedy)).values()
        assert tokens(responses) == text[:16]


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


def test_the_queue_is_bounded_and_the_batch_too(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path, ask: Ask
) -> None:
    folder = build(standin, tiny_checkpoint, tmp_path)
    executor = open_executor(standin, folder, max_queue_size=3, max_batch_size=2)
    with pytest.raises(RuntimeError, match=r"^Maximum queue size of 3 has been reached, "):
        executor.enqueue_requests([ask() for _ in range(4)])
    answers = drain(executor, *[ask(length=4) for _ in range(3)])
    assert len(answers) == 3
    stats = executor.get_latest_iteration_stats()
    assert max(record.num_active_requests for record in stats) == 2
    assert stats[0].max_num_active_requests == 2
    assert sum(record.num_completed_requests for record in stats) == 3
    assert executor.get_latest_iteration_stats() == [], "reading drains them"


def test_statistics_of_iterations(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path, ask: Ask
) -> None:
    executor = open_executor(standin, build(standin, tiny_checkpoint, tmp_path))
    answers = drain(executor, ask(length=40))
    iterations = executor.get_latest_iteration_stats()
    assert len(iterations) == len(answers[1]) + 1, "one more when everything has ended"
    assert iterations[0].inflight_batching_stats.num_context_requests == 1
    assert "inflight_batching_stats" in iterations[0].to_json_str()
    last = iterations[-1]
    assert (last.iter_latency_ms, last.inflight_batching_stats.num_scheduled_requests) == (0.0, 0)
    time.sleep(0.05)
    drain(executor, ask(length=3))
    late = executor.get_latest_iteration_stats()
    assert late[0].iter_latency_ms > 0.0, "the last pass of the batch before"
    assert late[1].iter_latency_ms >= 50.0, "the pause is in the first pass after it"


def test_an_iteration_holds_max_num_tokens_at_most(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path, ask: Ask, text: list[int]
) -> None:
    folder = build(standin, tiny_checkpoint, tmp_path, max_num_tokens=96)
    executor = open_executor(standin, folder, max_num_tokens=64)
    answers = drain(executor, *[ask() for _ in range(4)])
    assert all(tokens(responses) == text[:16] for responses in answers.values())
    scheduled = [
        record.inflight_batching_stats.num_scheduled_requests
        for record in executor.get_latest_iteration_stats()
    ]
    assert max(scheduled) < 4, "20 tokens of a prompt, 24 of a step"


@pytest.mark.parametrize("policy", ["MAX_UTILIZATION", "STATIC_BATCH"])
def test_a_stream_that_could_be_evicted_must_fit_as_a_prompt(
    standin: Standin, tiny_checkpoint: Path, tmp_path: Path, ask: Ask, policy: str
) -> None:
    e = standin.load("bindings.executor")
    scheduler = e.SchedulerConfig(getattr(e.CapacitySchedulerPolicy, policy))
    folder = build(standin, tiny_checkpoint, tmp_path)
    given = {"scheduler_config": scheduler, "max_num_tokens": 64}
    executor = open_executor(standin, folder, **given)
    answers = drain(executor, ask(length=45), ask(length=46), ask(length=46, streaming=False))
    assert finish(answers[1]) == finish(answers[3]) == "LENGTH"
    assert "potentially greater than max input length" in answers[2][0].error_msg


def test_several_responses_of_a_request_can_come_at_once(
    executor: Any, ask: Ask, standin: Standin, text: list[int]
) -> None:
    executor._burst = 3
    number = executor.enqueue_request(ask(length=40))
    first = executor.await_responses()
    assert len(first) == 3
    assert tokens(first) == text[: len(tokens(first))]
    assert executor.get_num_responses_ready(number) == 0


def test_nothing_works_after_shutdown(executor: Any, ask: Ask) -> None:
    assert executor.can_enqueue_requests()
    for _ in range(2):
        executor.shutdown()
    assert not executor.can_enqueue_requests()
    with pytest.raises(RuntimeError, match="Shutdown called, cannot enqueue requests"):
        executor.enqueue_request(ask())
    with pytest.raises(RuntimeError, match=r"Shutdown called \("):
        executor.cancel_request(1)


def test_timeouts_are_timedeltas(executor: Any) -> None:
    for wrong in (0.1, "1"):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            executor.await_responses(timeout=wrong)
