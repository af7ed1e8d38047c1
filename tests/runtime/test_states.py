"""Drafters get the hidden states of every token of their text once and in order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.compiled import config_of, needs_compiler, pair, text
from tests.support.examples import some
from tests.support.interrupts import Lines, no_collection, once_each
from tests.support.states import Seen, check_states, whole_states
from tests.support.toys import Made, request, run, tokens_of
from trtla.runtime.draft import NoDrafter
from trtla.runtime.drafters.tree import TreeDrafter
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop import step as step_loop
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.plain_loop import decode
from trtla.runtime.sequence import Sequence
from trtla.runtime.tree.library import SharedTrees
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig
from trtla.settings.sampling import SamplingParams

pytestmark = needs_compiler
TAPS = (0, 2)
TRIPLE = LookaheadConfig(3, 3, 1)
PROMPTS = (text(1, 5), text(2, 40), text(3, 2), text(4, 71))
LENGTH = 11


def models():
    """The compiled model and PyTorch's, with taps; and True where states are exact."""
    for model, exact in zip(pair(config_of(num_hidden_layers=3)), (True, False), strict=True):
        model.taps = TAPS
        yield model, exact


class Unread(NoDrafter):
    """Fails where it is shown states, which it does not want."""

    saw_hidden = None


def in_a_tree(seen, prompt):
    """A candidate tree whose only source is what a drafter proposes, beside one without drafts."""
    shared = SharedTrees(75)
    tree = shared.tree(prompt, SamplingParams(), ("chain",), True)
    return TreeDrafter(tree, shared, 4, LENGTH, others=(Unread(), seen), chain_len=9)


class Opened:
    """An executor whose drafters draft known texts; its requests, and the last drafter of each."""

    def __init__(self, model, texts, *, most=64, blocks=24, in_tree=False, **options):
        self.texts, self.in_tree, self.drafters = texts, in_tree, {}
        self.made = []
        limits = ExecutorLimits(3, 96, 112, most, 75, TRIPLE)
        made = Made(self._drafter)
        self.executor = TorchExecutor(model, model.new_cache(blocks), limits, made, **options)

    def _drafter(self, _, asked):
        seen = Seen(self.texts[asked.request_id], chain=self.in_tree)
        self.drafters[asked.request_id] = seen
        self.made.append(asked.request_id)
        return in_a_tree(seen, asked.input_ids) if self.in_tree else seen

    def asked(self, **changed):
        each = enumerate(PROMPTS)
        return [request(p, LENGTH, request_id=i, adaptive=self.in_tree, **changed) for i, p in each]


def plain_texts(model, length=LENGTH + 4):
    """What the model says, by itself and further than is asked for."""
    texts = {}
    for index, prompt in enumerate(PROMPTS):
        sequence = Sequence(request(prompt, length), AUTOREGRESSIVE, NoDrafter())
        texts[index] = sum(decode(model, sequence)[0], ())
    return texts


def check(model, exact, opened, written):
    """Each text is right, and its drafter has seen all of it."""
    for index, output in written.items():
        assert output == list(opened.texts[index][: len(output)])
        check_states(model, opened.drafters[index], (*PROMPTS[index], *output), exact)


def all_tokens(outputs):
    assert all(each[-1].error is None for each in outputs.values())
    return {index: tokens_of(each) for index, each in outputs.items()}


@pytest.mark.parametrize("in_tree", [False, True])
@pytest.mark.parametrize(("most", "blocks"), [(64, 24), (9, 24), (64, 5)])
def test_every_token_of_a_text_but_the_newest_comes_once(in_tree, most, blocks):
    """In chunks and at once, whoever else is in the batch, and where requests wait for memory."""
    for model, exact in models():
        opened = Opened(model, plain_texts(model), most=most, blocks=blocks, in_tree=in_tree)
        check(model, exact, opened, all_tokens(run(opened.executor, opened.asked())))
        assert opened.executor.stats().accepted > 10


@pytest.mark.parametrize("in_tree", [False, True])
def test_paths_that_are_cut_end_with_the_text(in_tree):
    """By an end id, a stop string, or the length, each at all places of an accepted path."""
    model, exact = next(models())
    texts = plain_texts(model)
    for length in range(5, 8):
        for cut in ("length", "end_id", "stop_words"):
            opened, asked = Opened(model, texts, in_tree=in_tree), []
            for index, one in enumerate(opened.asked()):
                if cut == "length":
                    one = replace(one, sampling=replace(one.sampling, max_output_len=length))
                elif cut == "end_id":
                    one = replace(one, end_ids=frozenset((texts[index][length - 1],)))
                else:
                    one = replace(one, stop_check=lambda ids, most=length: len(ids) >= most)
                asked.append(one)
            outputs = run(opened.executor, asked)
            assert all(each[-1].finish_reason == cut for each in outputs.values())
            check(model, exact, opened, all_tokens(outputs))


def test_a_text_in_the_plain_loop_gives_the_same():
    for model, exact in models():
        for index, output in plain_texts(model).items():
            seen, prompt = Seen(output), PROMPTS[index]
            asked = request(prompt, LENGTH)
            steps, _ = decode(model, Sequence(asked, TRIPLE, seen))
            check_states(model, seen, (*prompt, *sum(steps, ())), exact)


def test_a_text_that_goes_on_comes_from_its_start():
    for model, exact in models():
        texts = plain_texts(model)
        opened = Opened(model, texts, most=9)
        begun = {i: list(texts[i][: 2 + i]) for i in texts}
        asked = [replace(one, begun=tuple(begun[one.request_id])) for one in opened.asked()]
        outputs = run(opened.executor, asked)
        written = {i: [*begun[i], *tokens_of(outputs[i])] for i in outputs}
        check(model, exact, opened, written)


def test_tokens_of_kept_blocks_do_not_come():
    for model, exact in models():
        texts = plain_texts(model)
        opened = Opened(model, texts, max_reused_len=96)
        run(opened.executor, opened.asked())
        outputs = run(opened.executor, opened.asked())
        for index, prompt in enumerate(PROMPTS):
            start, output = (len(prompt) - 1) // 32 * 32, tokens_of(outputs[index])
            assert outputs[index][0].stats.reused_tokens == start
            check_states(model, opened.drafters[index], (*prompt, *output), exact, start)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_request_that_is_cancelled_shifts_nobodys_states(ahead):
    """Its tokens stay in a step that has begun; none of them comes."""
    model, exact = next(models())
    texts = plain_texts(model)
    for leaving in range(3):
        opened, outputs = Opened(model, texts, ahead=ahead), {i: [] for i in range(4)}
        for one in opened.asked():
            opened.executor.submit(one)
        left = False
        while step := opened.executor.poll():
            for output in step:
                outputs[output.request_id].append(output)
            if not left and len(outputs[leaving]) == 2:
                opened.executor.cancel(leaving)
                left = True
        assert outputs[leaving][-1].finish_reason == "cancelled"
        check(model, exact, opened, all_tokens(outputs))


class Torn(BaseException):
    """No error that the code knows."""


def torn_run(opened, lines):
    """Run all requests; an error may come at any line of a step."""
    outputs = {i: {} for i in range(len(PROMPTS))}
    for one in opened.asked():
        opened.executor.submit(one)
    while True:
        try:
            with lines:
                step = opened.executor.poll()
        except Torn:
            continue
        if not step:
            return {i: [each[start] for start in sorted(each)] for i, each in outputs.items()}
        for output in step:
            outputs[output.request_id][output.start] = output


@pytest.mark.parametrize("in_tree", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_a_torn_step_is_fed_again_to_new_drafters(in_tree):
    model, exact = next(models())
    texts = plain_texts(model)
    with no_collection():
        whole = Lines((step_loop,))
        torn_run(Opened(model, texts, most=40, in_tree=in_tree), whole)
        for place in some(once_each(whole.seen)):
            opened = Opened(model, texts, most=40, in_tree=in_tree)
            outputs = torn_run(opened, Lines((step_loop,), place, Torn))
            assert len(opened.made) > len(PROMPTS)  # drafters were made again
            check(model, exact, opened, all_tokens(outputs))


class Moody(Seen):
    """Wants those of its prompt, and of every other step."""

    @property
    def wants_states(self):
        return self.done % 6 < 2


class Failing(Seen):
    """Raises in the middle of its prompt, or behind it."""

    def __init__(self, when):
        super().__init__()
        self.left = when

    def saw_hidden(self, first, states):
        self.left -= 1
        if self.left < 0:
            raise ValueError("these states are of no use")


def executor_of(model, drafters, most=9):
    limits = ExecutorLimits(3, 96, 112, most, 75, TRIPLE)
    made = Made(lambda _, asked: drafters[asked.request_id])
    return TorchExecutor(model, model.new_cache(24), limits, made)


def noted_forwards(executor):
    """Notes each forward's feeds, and whether layers were tapped."""
    forward, noted = executor._stepper.forward, []

    def instead(feeds):
        done = forward(feeds)
        noted.append(([feed.sequence.request.request_id for feed in feeds], done.hidden))
        return done

    executor._stepper.forward = instead
    return noted


def test_a_step_is_tapped_where_a_drafter_wants_states():
    """No other drafter of the batch is shown them."""
    for model, _ in models():
        texts = plain_texts(model)
        drafters = {0: Seen(texts[0]), 1: Unread(), 2: Unread(), 3: Unread()}
        executor = executor_of(model, drafters)
        noted = noted_forwards(executor)
        all_tokens(run(executor, [request(p, LENGTH, None, i) for i, p in enumerate(PROMPTS)]))
        assert {0 in ids for ids, _ in noted} == {False, True}
        assert all((hidden is not None) == (0 in ids) for ids, hidden in noted)


def test_a_drafter_may_want_states_at_times():
    for model, exact in models():
        texts = plain_texts(model)
        moody = Moody(texts[1])
        executor = executor_of(model, {0: Seen(texts[0]), 1: moody})
        run(executor, [request(PROMPTS[i], LENGTH, request_id=i) for i in range(2)])
        whole = whole_states(model, (*PROMPTS[1], *texts[1]))
        for first, states in moody.parts:
            wanted = whole[:, first : first + states.shape[1]]
            assert abs(states - wanted).max() <= (0 if exact else 1e-4)
        places = [first for first, _ in moody.parts if first >= len(PROMPTS[1])]
        assert places == [40, 46]  # each step accepts two tokens


@pytest.mark.parametrize("when", [0, 4, 6])
def test_a_drafter_that_cannot_read_states_fails_alone(when):
    """In a chunk of its prompt, in the last one, and in a step."""
    model, exact = next(models())
    texts = plain_texts(model)
    made = []

    def drafter(_, asked):
        if asked.request_id == 1:
            return Failing(when)
        made.append(Seen())
        return made[-1]

    limits = ExecutorLimits(3, 96, 112, 18, 75, TRIPLE)
    executor = TorchExecutor(model, model.new_cache(24), limits, Made(drafter))
    asked = [request(PROMPTS[i], LENGTH, request_id=i) for i in range(2)]
    outputs = run(executor, asked)
    assert outputs[1][-1].finish_reason == "failed"
    assert "these states are of no use" in outputs[1][-1].error.message
    assert len(made) == 2  # the other text is read again
    check_states(model, made[1], (*PROMPTS[0], *texts[0][:LENGTH]), exact)
