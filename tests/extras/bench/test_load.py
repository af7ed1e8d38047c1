"""Times of requests and figures of `trtla bench --serve`."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from trtla.errors import UsageError
from trtla.extras.bench.load_client import AnswerFailed, StreamedAnswer, reason_of
from trtla.extras.bench.load_command import server_url
from trtla.extras.bench.load_report import row
from trtla.extras.bench.load_runs import Load, LoadRun, arrivals
from trtla.settings.sampling import Filters


def chunk(text: str, **more: str) -> str:
    keys = "".join(f', "{key}": "{value}"' for key, value in more.items())
    return f'{{"choices": [{{"text": "{text}"{keys}}}]}}'


def test_times_are_those_of_chunks_with_text() -> None:
    answer = StreamedAnswer(10.0)
    answer.take('{"choices": [{"delta": {"role": "assistant", "content": ""}}]}', 10.5)
    answer.take('{"choices": [{"delta": {"reasoning_content": "so", "content": null}}]}', 11.0)
    answer.take(chunk("a"), 11.25)
    answer.take(chunk("", finish_reason="stop"), 12.0)
    answer.take('{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}', 13.0)
    answer.end()
    assert (answer.text, answer.input_tokens, answer.output_tokens) == ("soa", 3, 5)
    assert (answer.ttft_s, answer.e2el_s, answer.gaps_s) == (1.0, 2.0, [0.25])
    assert answer.tpot_s == (2.0 - 1.0) / (5 - 1)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("{", "not a JSON object"),
        ("[]", "not a JSON object"),
        ('{"choices": [3]}', "is 3"),
        ('{"error": "out of memory"}', "out of memory"),
        ('{"error": {"message": "too\\n long", "code": 400}}', "too long"),
    ],
)
def test_what_is_no_chunk_fails_the_request(data: str, reason: str) -> None:
    with pytest.raises(AnswerFailed, match=reason):
        StreamedAnswer(0.0).take(data, 0.0)


def test_a_refusal_is_one_line_in_any_form() -> None:
    assert reason_of({"detail": [{"loc": "n"}]}) == "[{'loc': 'n'}]"
    assert reason_of({"object": "error", "message": "no"}) == "no"
    assert reason_of({"other": 1}) == '{"other": 1}'
    assert len(reason_of("x" * 9999)) == 300


def test_arrivals_are_a_seeded_poisson_process() -> None:
    times = arrivals(4000, 8.0, seed=3)
    assert times == arrivals(4000, 8.0, seed=3) != arrivals(4000, 8.0, seed=4)
    assert times[0] == 0.0
    assert times == sorted(times)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 8, rel=0.05)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.03)
    assert arrivals(3, math.inf, seed=0) == [0.0, 0.0, 0.0]


def answered(start: float, *times: float, tokens: int, error: str | None = None) -> StreamedAnswer:
    return StreamedAnswer(
        start,
        ["x"] * len(times),
        list(times),
        last=times[-1],
        closed=times[-1],
        usage={"prompt_tokens": 10, "completion_tokens": tokens},
        metrics={"steps": 2, "drafted": 8, "accepted": 3},
        error=error,
    )


def test_figures_follow_from_the_answers() -> None:
    run = LoadRun(Load(request_rate=math.inf), Filters(0.0, 0, 1.0), [None] * 4, start=100.0)  # type: ignore[list-item]
    run.answers = {
        0: answered(100.0, 101.0, 102.0, 104.0, tokens=7),
        1: answered(100.0, 103.0, 104.0, tokens=2),
        2: answered(100.0, 105.0, tokens=1, error="cut"),
    }
    found = row(run)
    assert (found.request_rate, found.requests, found.completed, found.failed) == ("inf", 4, 2, 1)
    assert found.time_s == 5.0
    assert (found.total_input_tokens, found.output_tokens) == (20, 9)
    throughputs = (
        found.request_throughput, found.tokens_per_s, found.total_token_throughput
    )  # fmt: skip
    assert throughputs == (2 / 5, 9 / 5, 29 / 5)
    assert (found.mean_ttft_ms, found.std_ttft_ms) == (2000.0, 1000.0)
    assert found.p99_ttft_ms == pytest.approx(2980.0)
    assert found.mean_tpot_ms == pytest.approx((500 + 1000) / 2)  # 3 s for 6 tokens, 1 s for 1
    assert (found.median_itl_ms, found.mean_itl_ms) == (1000.0, pytest.approx(4000 / 3))
    assert (found.median_e2el_ms, found.std_e2el_ms) == (4000.0, 0.0)
    assert (found.steps, found.drafted, found.accepted) == (4, 16, 6)
    assert (found.acceptance_rate, found.tokens_per_step) == (6 / 16, 7 / 4)
    assert [(one.reason, one.count) for one in found.failures] == [("cut", 1)]


@pytest.mark.parametrize("text", ["http://h:8000", "http://h:8000/", "http://h:8000/v1/"])
def test_an_address_may_end_with_v1(text: str) -> None:
    assert server_url(text) == "http://h:8000"


@pytest.mark.parametrize("text", ["h:8000", "ftp://h", "http://", "http://h:x", "http://h?a=1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a server"):
        server_url(text)
