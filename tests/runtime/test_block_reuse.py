"""Block reuse behind the step loop: texts stay what they are, and the cache what it says it is.

Toys here, whose cache can be read as text; the real models are in test_block_reuse_real.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.mixed import VOCAB, drafters, plain_texts, triples
from tests.support.reuse import LONGEST, RULE, check_cache, prompt_of, reusing
from tests.support.toy_heads import ToyHead
from tests.support.toys import (
    ToyModel,
    hash_scores,
    plain,
    request,
    run,
    tokens_of,
)
from trtla.runtime.drafters.draft_model import DraftModelDrafters
from trtla.runtime.drafters.eagle import EagleDrafters
from trtla.runtime.drafters.factory import Drafters
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig


def ask(executor, prompt, count=4, index=0, **settings_):
    outputs = run(executor, [request(prompt, count, request_id=index, **settings_)])[index]
    check_cache(executor)
    return tokens_of(outputs), outputs[-1].stats.reused_tokens


def test_a_conversation_feeds_each_turn_once():
    executor, model = reusing()
    text, fed = prompt_of(70), []
    for turn, reused in enumerate((0, 64, 96)):
        before = len(model.fed)
        assert ask(executor, text, 12, turn) == (plain(RULE, text, 12), reused)
        fed.append((len(text), model.fed[before]))
        text += [*plain(RULE, text, 12), *prompt_of(14, turn)]
    assert fed == [(70, 70), (96, 32), (122, 26)]
    assert executor.stats().prompt_tokens == 70 + 96 + 122


def test_it_is_off_unless_asked_for():
    executor, _ = reusing(max_reused_len=0)
    for index in range(2):
        assert ask(executor, prompt_of(70), 4, index)[1] == 0
    assert executor._cache.pool._kept._by_block == {}


@pytest.mark.parametrize(("length", "reused"), [(31, 0), (32, 0), (33, 32), (64, 32), (65, 64)])
def test_the_last_prompt_token_is_always_fed(length, reused):
    executor, _ = reusing()
    prompt = prompt_of(length)
    assert ask(executor, prompt, 9) == (plain(RULE, prompt, 9), 0)
    assert ask(executor, prompt, 9, 1) == (plain(RULE, prompt, 9), reused)


def test_the_last_token_of_a_text_is_not_cached_and_so_not_kept():
    executor, _ = reusing(server=AUTOREGRESSIVE)
    prompt = prompt_of(24)
    text = prompt + plain(RULE, prompt, 9)
    ask(executor, prompt, 8)  # 32 tokens, of which 31 are cached
    assert executor._cache.pool.find(text) == ()
    ask(executor, prompt, 9, 1)
    assert len(executor._cache.pool.find(text)) == 1


def test_one_token_less_in_common_is_a_block_less():
    executor, _ = reusing()
    prompt = prompt_of(100)
    ask(executor, prompt)
    for place, reused in ((96, 96), (95, 64), (63, 32), (0, 0)):
        other = [*prompt[:place], (prompt[place] + 1) % 5, *prompt[place + 1 :]]
        assert ask(executor, other, 4, place + 1) == (plain(RULE, other, 4), reused)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_prompt_cancelled_in_the_middle_leaves_what_it_had_read(ahead):
    executor, _ = reusing(max_num_tokens=48, ahead=ahead)
    prompt = prompt_of(120)
    executor.submit(request(prompt, 5))
    executor.submit(request([1, 2, 3], 20, request_id=1))
    executor._advance()  # 48 tokens of the first prompt
    executor.cancel(0)
    check_cache(executor)
    while executor.poll():
        check_cache(executor)
    assert ask(executor, prompt, 5, 2) == (plain(RULE, prompt, 5), 32)


def test_requests_in_flight_share_blocks_until_the_last_one_ends():
    executor, _ = reusing(num_blocks=18)
    prompt = prompt_of(70)
    ask(executor, prompt)
    prompts = [[*prompt, index] for index in range(3)]
    for index, one in enumerate(prompts):
        executor.submit(request(one, 20 + 9 * index, request_id=index))
    executor.poll()
    running = executor._scheduler._running
    assert len(running) == 3
    assert len({sequence.blocks[:2] for sequence in running}) == 1
    assert len({block for sequence in running for block in sequence.blocks[2:]}) == sum(
        len(sequence.blocks) - 2 for sequence in running
    )
    while executor.poll():
        check_cache(executor)
    assert executor._cache.pool.num_free == 18


def started(executor, prompts, count=4):
    """Submit prompts together; the texts, the tokens each reused, and those fed in each step."""
    fed = executor._stepper.model.fed
    before = len(fed)
    asked = [request(one, count + i, request_id=i) for i, one in enumerate(prompts)]
    outputs = run(executor, asked)
    check_cache(executor)
    assert executor._cache.pool.num_free == executor._cache.pool.num_blocks
    texts = [tokens_of(outputs[i]) for i in range(len(prompts))]
    assert texts == [plain(RULE, one, count + i) for i, one in enumerate(prompts)]
    return [outputs[i][-1].stats.reused_tokens for i in range(len(prompts))], fed[before:]


def test_equal_prompts_that_start_together_are_read_once():
    executor, _ = reusing(num_blocks=40, server=AUTOREGRESSIVE)
    reused, fed = started(executor, [prompt_of(100)] * 4)
    assert reused == [0, 96, 96, 96]
    assert fed[:2] == [100, 1 + 3 * 4]


def step(executor):
    executor._advance()
    check_cache(executor)
    return [sequence.request.request_id for sequence in executor._scheduler._running]


def test_a_prompt_waits_only_for_the_blocks_that_it_shares():
    """Nobody waits behind it: the last one shares nothing, the third one a single block."""
    executor, _ = reusing(num_blocks=40, server=AUTOREGRESSIVE, max_num_tokens=40)
    long = prompt_of(120)
    for index, one in enumerate([long, long, [*long[:40], *prompt_of(50, 1)], prompt_of(20, 3)]):
        executor.submit(request(one, 9, request_id=index))
    running = [step(executor) for _ in range(6)]
    assert running == [[0, 3], [0, 3], [0, 3, 2], [0, 3, 2], [0, 3, 2, 1], [0, 3, 2, 1]]
    assert [s.stats.reused_tokens for s in executor._scheduler._running] == [0, 0, 32, 96]
    while executor.poll():
        check_cache(executor)


def test_who_waits_for_a_prompt_goes_on_alone_where_that_one_is_cancelled():
    executor, _ = reusing(server=AUTOREGRESSIVE, max_num_tokens=40)
    prompt = prompt_of(120)
    for index in range(2):
        executor.submit(request(prompt, 5, request_id=index))
    assert step(executor) == [0]
    executor.cancel(0)
    outputs = []
    while found := executor.poll():
        outputs += [one for one in found if one.request_id == 1]
    assert tokens_of(outputs) == plain(RULE, prompt, 5)
    assert outputs[-1].stats.reused_tokens == 32
    check_cache(executor)


def test_an_interrupted_step_leaves_nothing_behind(monkeypatch):
    executor, _ = reusing(server=LookaheadConfig(4, 4, 4))
    prompt = [1, 2, 3, 4] * 15

    def interrupt(*_):
        raise KeyboardInterrupt

    executor.submit(request(prompt, 40))
    executor.poll()
    with monkeypatch.context() as patch:
        patch.setattr(executor._stepper, "_move_accepted", interrupt)
        with pytest.raises(KeyboardInterrupt):
            executor.poll()
    executor.cancel(0)
    executor.poll()
    check_cache(executor)
    assert ask(executor, prompt, 40, 1) == (plain(RULE, prompt, 40), 0)


def test_what_takes_blocks_beside_requests_takes_kept_ones_too():
    executor, _ = reusing(num_blocks=7, max_batch_size=1)
    ask(executor, prompt_of(130))
    pool = executor._cache.pool
    assert len(pool.find(prompt_of(130))) == 4
    executor.log_probs(request(prompt_of(LONGEST - 1, salt=1), 1), [1])
    check_cache(executor)
    assert pool.num_free == 7
    assert len(pool.find(prompt_of(130))) < 4


@st.composite
def turns(draw):
    """What one request adds to an earlier text, what it is decoded with, and when it is ended."""
    return {
        "follows": draw(st.integers(0, 9)),
        "kept": draw(st.sampled_from([0, 1, 40, 64, 70, 999])),
        "added": draw(st.integers(1, 60)),
        "salt": draw(st.integers(0, 2)),
        "count": draw(st.integers(1, 30)),
        "polls": draw(st.integers(0, 12)),
        "cancelled": draw(st.integers(0, 3)) == 0,
        "torn": draw(st.integers(0, 3)) == 0,
        "settings": {
            "lookahead": draw(triples()),
            "drafter": draw(drafters()),
            "temperature": draw(st.sampled_from([0.0, 0.9])),
            "seed": draw(st.integers(0, 1)),
            "end_ids": draw(st.sets(st.integers(0, VOCAB - 1), max_size=1)),
        },
        "stop": draw(st.sampled_from([None, lambda ids: ids[-2:] in ([1, 2], [0, 3])])),
    }


def every_drafter(server, batch, budget, num_blocks):
    """A reusing toy with drafters of all kinds, a draft model and a head too."""
    limits = ExecutorLimits(batch, LONGEST, LONGEST, budget, VOCAB, server)
    cache = TensorCache(1, 1, 2, 7 * batch, torch.float64, torch.device("cpu"))
    model = ToyModel(hash_scores(VOCAB, 1))
    group = DraftModelDrafters(model, cache, DrafterSettings(("draft:toy",)), limits)
    head = ToyHead(hash_scores(VOCAB, 1))
    heads = EagleDrafters(head, head.new_cache(num_blocks + 1), (0,))
    factory = Drafters(limits, DraftOptions(), {"toy": group}, {"toy": heads})
    return reusing(
        num_blocks, scores=hash_scores(VOCAB), vocab=VOCAB, server=server, drafter=factory,
        max_batch_size=batch, max_num_tokens=budget, draft_models=("toy",),
        heads=("toy",),
    )[0]  # fmt: skip


@examples(60)
@given(st.lists(turns(), min_size=2, max_size=7), st.integers(1, 4), st.integers(7, 20))
def test_conversations_say_what_they_say_without_reuse(several, batch, num_blocks):
    server = LookaheadConfig(4, 4, 3)
    executor = every_drafter(server, batch, 40 + 26 * batch, num_blocks)
    before, expected, found, cut = [[]], {}, {}, set()

    def poll():
        outputs = executor.poll()
        for output in outputs:
            found[output.request_id][output.start :] = output.new_tokens
        check_cache(executor)
        return outputs

    for index, turn in enumerate(several):
        base = before[turn["follows"] % len(before)][: turn["kept"]][: LONGEST - 91]
        added = [(turn["salt"] + i * i // 3) % VOCAB for i in range(turn["added"])]
        one = request([*base, *added], turn["count"], request_id=index, **turn["settings"])
        one = replace(one, stop_check=turn["stop"])
        expected[index], found[index] = plain_texts([one])[index], []
        before.append([*one.input_ids, *expected[index]])
        executor.submit(one)
        for _ in range(turn["polls"]):
            poll()
        if turn["torn"]:
            executor._record.unfinished = True  # all is made anew
        if turn["cancelled"]:
            cut.add(index)
            executor.cancel(index)
    while poll():
        pass
    for index, text in expected.items():
        said = found[index]
        assert said == (text[: len(said)] if index in cut else text)
    assert executor._cache.pool.num_free == num_blocks
