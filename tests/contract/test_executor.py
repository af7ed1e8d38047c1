"""What every executor promises: on torch, on the stand-in, on the real TensorRT-LLM (-m trtllm).

The expected texts come from transformers' greedy decoding of the same float16 weights in float32.
The stand-in shows that trtla keeps its side of TensorRT-LLM's contract, and nothing about the real
library; the tests marked trtllm run against that one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from trtla import SamplingParams, TrtlaError, UsageError
from trtla.build.engine import build_engine
from trtla.formats.engine import open_engine
from trtla.formats.engine_limits import BuildSettings
from trtla.llm.open import open_executor
from trtla.runtime.executor import Executor
from trtla.runtime.request import Output, Request
from trtla.settings.executor import ExecutorOptions
from trtla.settings.lookahead import LookaheadConfig

SERVER = LookaheadConfig(4, 4, 4)
TRIPLES = [(4, 4, 4), (1, 1, 0), (2, 2, 1), (3, 4, 2), (1, 2, 0)]
PROMPTS = [
    tuple(b"def read(path):\n    "),
    tuple(b"aaaaaaaaaaaa"),
    tuple(b"To be, or not to be, that is "),
    tuple(b"x"),
]
LENGTH = 24
ROUNDING = 0.02
"""More than float16 changes a logit of the tiny model by."""

Open = Callable[..., Executor]


@pytest.fixture(
    params=[
        "torch",
        "standin",
        pytest.param("rounding", marks=pytest.mark.deep),
        pytest.param("tensorrt-llm", marks=pytest.mark.trtllm),
    ]
)
def opener(request: pytest.FixtureRequest, tiny_checkpoint: Path, tmp_path: Path) -> Iterator[Open]:
    """Builds an engine for a triple and opens it; everything is closed at the end.

    `rounding` is the stand-in with errors in its logits that half precision can make.
    """
    backend = "torch" if request.param == "torch" else "tensorrt-llm"
    if request.param == "rounding":
        request.getfixturevalue("monkeypatch").setenv("TENSORRT_LLM_STANDIN_NOISE", str(ROUNDING))
    if request.param in ("standin", "rounding"):
        request.getfixturevalue("standin")
        request.getfixturevalue("fake_gpu")
    opened: list[Executor] = []

    def open_one(server: LookaheadConfig = SERVER, **settings: object) -> Executor:
        folder = tmp_path / str(server).replace(",", "-")
        if not folder.exists():
            asked = BuildSettings(server, max_batch_size=4, max_input_len=64, max_seq_len=128)
            build_engine(tiny_checkpoint, folder, asked, backend=backend)
        executor = open_executor(open_engine(folder), ExecutorOptions(**settings))  # type: ignore[arg-type]
        opened.append(executor)
        return executor

    yield open_one
    for executor in opened:
        executor.close()


@pytest.fixture(scope="session")
def reference(tiny_checkpoint: Path) -> Callable[[Sequence[int], int], list[int]]:
    """Greedy decoding by transformers from the checkpoint's own tensors."""
    import json

    from tests.support.models import assemble, model_of

    config = json.loads((tiny_checkpoint / "config.json").read_text())
    state = {name: tensor.float() for name, tensor in assemble(tiny_checkpoint).items()}
    model = model_of(config, state)

    @cache
    def decode(prompt: tuple[int, ...], count: int) -> list[int]:
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(count):
                best = model(torch.tensor([ids])).logits[0, -1].topk(2)
                margin = float(best.values[0] - best.values[1])
                assert margin > 0.05 or len(ids) >= len(prompt) + LENGTH, (prompt, margin)
                ids.append(int(best.indices[0]))
        return ids[len(prompt) :]

    return lambda prompt, count: decode(tuple(prompt), count)


def run(executor: Executor, requests: Sequence[Request]) -> dict[int, list[Output]]:
    outputs: dict[int, list[Output]] = {r.request_id: [] for r in requests}
    for request in requests:
        executor.submit(request)
    for output in rest(executor):
        outputs[output.request_id].append(output)
    return outputs


def rest(executor: Executor) -> list[Output]:
    """What is still to come."""
    return [output for step in iter(executor.poll, []) for output in step]


def tokens(outputs: Sequence[Output]) -> list[int]:
    return [token for output in outputs for token in output.new_tokens]


def ask(number: int, prompt: Sequence[int], length: int = LENGTH, **given: object) -> Request:
    lookahead = given.pop("lookahead", None)
    own = LookaheadConfig(*lookahead) if lookahead else None  # type: ignore[misc]
    sampling = SamplingParams(max_output_len=length, **given.pop("sampling", {}))  # type: ignore[arg-type]
    return Request(number, tuple(prompt), sampling, own, **given)  # type: ignore[arg-type]


def test_every_triple_gives_the_targets_own_text_also_for_short_prompts(opener, reference):
    executor = opener()
    asked = [
        ask(number, PROMPTS[number // len(TRIPLES)], lookahead=TRIPLES[number % len(TRIPLES)])
        for number in range(len(PROMPTS) * len(TRIPLES))
    ]
    done = run(executor, asked)
    for request in asked:
        assert tokens(done[request.request_id]) == reference(request.input_ids, LENGTH), request
        assert done[request.request_id][-1].finish_reason == "length"


def test_a_plain_engine_gives_the_same_text(opener, reference):
    done = run(opener(LookaheadConfig(1, 1, 0)), [ask(0, PROMPTS[0])])
    assert tokens(done[0]) == reference(PROMPTS[0], LENGTH)


def test_counters_add_up(opener):
    executor = opener()
    done = run(executor, [ask(0, PROMPTS[1]), ask(1, PROMPTS[1], lookahead=(1, 1, 0))])
    for outputs in done.values():
        stats = outputs[-1].stats
        assert sum(stats.step_lengths) == len(tokens(outputs)) == LENGTH
        assert len(stats.step_lengths) == 1 + stats.steps
        assert sum(stats.accepted_per_pos) * stats.steps == pytest.approx(stats.accepted)
        # A text that ends inside an accepted draft has no drawn token in its last step.
        assert stats.accepted - (LENGTH - 1 - stats.steps) in (0, 1)
    fast, plain = done[0][-1].stats, done[1][-1].stats
    assert plain.steps == LENGTH - 1
    assert plain.tokens_per_step == 1.0
    assert fast.tokens_per_step > 1.5, "repetition must be drafted"
    assert fast.lookahead == SERVER
    assert plain.lookahead == LookaheadConfig(1, 1, 0)
    total = executor.stats()
    assert total.new_tokens == 2 * LENGTH
    assert total.prompt_tokens == 2 * len(PROMPTS[1])
    assert total.accepted == fast.accepted
    assert LENGTH <= total.steps <= 2 * LENGTH
    assert total.max_in_flight == 2


def test_a_pass_is_counted_once_also_when_batches_come_one_by_one(opener):
    executor = opener()
    for number in range(3):
        run(executor, [ask(number, PROMPTS[0], 8, lookahead=(1, 1, 0))])
        assert executor.stats().steps == 8 * (number + 1)


def test_the_end_token_is_part_of_the_output_and_ends_it(opener, reference):
    text = reference(PROMPTS[0], LENGTH)
    executor = opener()
    for last in (text[0], text[5], text[-1]):
        expected = text[: text.index(last) + 1]
        (outputs,) = run(executor, [ask(0, PROMPTS[0], end_ids=frozenset({last}))]).values()
        assert tokens(outputs) == expected
        assert outputs[-1].finish_reason == "end_id"


def test_any_of_several_end_ids_ends_the_text(opener, reference):
    text = reference(PROMPTS[2], LENGTH)
    unused = next(i for i in range(258) if i not in text)
    for high, low in ((text[7], unused), (unused, text[7])):
        ends = frozenset({max(high, low), min(high, low), 257})
        (outputs,) = run(opener(), [ask(0, PROMPTS[2], end_ids=ends)]).values()
        assert tokens(outputs) == text[: text.index(text[7]) + 1]
        assert outputs[-1].finish_reason == "end_id"


def test_any_of_several_stop_tokens_ends_the_text(opener, reference):
    text = reference(PROMPTS[2], LENGTH)
    sampling = {"stop_token_ids": [text[9], text[7]]}
    end = min(text.index(text[9]), text.index(text[7]))
    done = run(opener(), [ask(0, PROMPTS[2], sampling=sampling), ask(1, PROMPTS[0])])
    assert tokens(done[0]) == text[: end + 1]
    assert done[0][-1].finish_reason == "stop_words"
    assert tokens(done[1]) == reference(PROMPTS[0], LENGTH)


def test_a_stop_string_ends_the_text_at_the_token_that_completes_it(opener, reference):
    text = reference(PROMPTS[0], LENGTH)
    stop = text[9:11]
    at = next(i for i in range(1, LENGTH) if text[i - 1 : i + 1] == stop)

    def seen(ids: list[int]) -> bool:
        return any(ids[i : i + 2] == stop for i in range(len(ids) - 1))

    both = [ask(0, PROMPTS[0], stop_check=seen), ask(1, PROMPTS[2])]
    done = run(opener(), both)
    assert tokens(done[0]) == text[: at + 1]
    assert done[0][-1].finish_reason == "stop_words"
    assert tokens(done[1]) == reference(PROMPTS[2], LENGTH)


def test_a_stop_check_that_raises_ends_its_own_request_alone(opener, reference):
    def check(ids: list[int]) -> bool:
        if len(ids) == 4:
            raise ZeroDivisionError
        return False

    done = run(opener(), [ask(0, PROMPTS[0], stop_check=check), ask(1, PROMPTS[2])])
    assert done[0][-1].finish_reason == "failed"
    assert "request 0 failed: ZeroDivisionError" in done[0][-1].error.message
    text: list[int] = []
    for output in done[1]:  # what was recorded before may come again
        text[output.start :] = output.new_tokens
    assert text == reference(PROMPTS[2], LENGTH)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_the_output_is_never_longer_than_asked(opener, reference, length):
    (outputs,) = run(opener(), [ask(0, PROMPTS[1], length)]).values()
    assert tokens(outputs) == reference(PROMPTS[1], LENGTH)[:length]
    assert outputs[-1].finish_reason == "length"


def test_cancelling_ends_one_request_and_leaves_the_others(opener, reference):
    executor = opener()
    executor.submit(ask(0, PROMPTS[0], 60))
    executor.submit(ask(1, PROMPTS[2]))
    first = executor.poll()
    executor.cancel(0)
    executor.cancel(99)
    outputs = [*first, *rest(executor)]
    zero = [o for o in outputs if o.request_id == 0]
    assert zero[-1].finish_reason == "cancelled"
    assert zero[-1].new_tokens == ()
    assert tokens(zero) == reference(PROMPTS[0], 60)[: len(tokens(zero))]
    assert tokens([o for o in outputs if o.request_id == 1]) == reference(PROMPTS[2], LENGTH)
    (again,) = run(executor, [ask(0, PROMPTS[0])]).values()
    assert tokens(again) == reference(PROMPTS[0], LENGTH), "an id is free again after its end"


def test_a_request_ends_when_its_time_is_over(opener, reference):
    executor = opener()
    executor.submit(ask(0, PROMPTS[0], 60, sampling={"allotted_time_ms": 1}))
    executor.submit(ask(1, PROMPTS[2]))
    time.sleep(0.01)  # at least
    outputs = rest(executor)
    late = [o for o in outputs if o.request_id == 0]
    assert late[-1].finish_reason == "timed_out"
    assert tokens(late) == reference(PROMPTS[0], 60)[: len(tokens(late))]
    assert tokens([o for o in outputs if o.request_id == 1]) == reference(PROMPTS[2], LENGTH)


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (ask(7, ()), ("empty prompt",)),
        (ask(7, range(128)), ("128 tokens", "max_input_len")),
        (ask(7, range(60), 69), ("129", "max_seq_len 128")),
        (ask(7, (1, 258)), ("token id 258",)),
        (ask(7, PROMPTS[0], lookahead=(5, 4, 4)), ("5,4,4", "4,4,4")),
        (ask(7, PROMPTS[0], lookahead=(4, 5, 4)), ("4,5,4", "4,4,4")),
        (ask(7, PROMPTS[0], lookahead=(4, 4, 5)), ("4,4,5", "4,4,4")),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_changes(opener, reference, request_, parts):
    executor = opener()
    executor.submit(ask(0, PROMPTS[0]))
    with pytest.raises(UsageError) as refusal:
        executor.submit(request_)
    assert all(part in refusal.value.message for part in parts), refusal.value
    outputs = rest(executor)
    assert {o.request_id for o in outputs} == {0}
    assert tokens(outputs) == reference(PROMPTS[0], LENGTH)


def test_log_probabilities_come_with_every_token_or_are_refused(opener, reference):
    executor, request = opener(), ask(0, PROMPTS[0], logprobs=2)
    if executor.limits.fixed_triples:
        with pytest.raises(UsageError, match="which engines of TensorRT-LLM do not report here"):
            executor.submit(request)
        return
    (outputs,) = run(executor, [request]).values()
    found = [one for output in outputs for one in output.logprobs]
    assert [one.token for one in found] == tokens(outputs) == reference(PROMPTS[0], LENGTH)


def test_time_in_the_queue_counts(opener, reference):
    executor = opener(max_batch_size=1)
    executor.submit(ask(0, PROMPTS[0], 100))
    executor.submit(ask(1, PROMPTS[2], sampling={"allotted_time_ms": 1}))
    outputs = executor.poll()
    while all(output.request_id == 0 for output in outputs):
        outputs = executor.poll()
    late = next(output for output in outputs if output.request_id == 1)
    assert (late.finish_reason, late.new_tokens) == ("timed_out", ())
    assert {output.request_id for output in rest(executor)} == {0}, (
        "the first one was still running"
    )
    (again,) = run(executor, [ask(1, PROMPTS[2])]).values()
    assert tokens(again) == reference(PROMPTS[2], LENGTH), "its id is free again"


def test_an_id_in_flight_cannot_be_used_twice(opener):
    executor = opener()
    executor.submit(ask(0, PROMPTS[0]))
    with pytest.raises(UsageError, match="already in flight"):
        executor.submit(ask(0, PROMPTS[1]))


def test_nothing_in_flight_is_an_empty_list_at_once(opener):
    executor = opener()
    assert executor.poll() == []
    assert executor.poll(timeout=3600.0) == []  # pytest's time limit is far below


def test_more_requests_than_the_batch_holds_wait_for_their_turn(opener, reference):
    executor = opener()
    done = run(executor, [ask(i, PROMPTS[i % 3], 12) for i in range(9)])
    assert all(tokens(done[i]) == reference(PROMPTS[i % 3], LENGTH)[:12] for i in range(9))
    assert executor.stats().max_in_flight == executor.limits.max_batch_size == 4


def test_a_closed_executor_says_so_and_closing_twice_is_fine(opener):
    with opener() as executor:
        executor.submit(ask(0, PROMPTS[0]))
    executor.close()
    for call in (executor.poll, lambda: executor.submit(ask(1, PROMPTS[0]))):
        with pytest.raises(TrtlaError, match="closed"):
            call()


def test_it_leads_and_says_what_it_is(opener):
    executor = opener()
    assert executor.is_leader
    assert executor.description.startswith(("torch on", "cpu", "TensorRT-LLM"))


def test_a_triple_of_another_size_than_the_engine_is_refused(opener):
    opener()
    with pytest.raises(UsageError, match="max_draft_len"):
        opener(lookahead=LookaheadConfig(3, 3, 3))


def test_a_batch_above_the_engines_is_refused(opener):
    with pytest.raises(UsageError, match="max_batch_size 5 is above the engine's 4"):
        opener(max_batch_size=5)
