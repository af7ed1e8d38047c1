"""Caches of a target and its draft models are sized together, from what is free on each device."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trtla import LLM, DrafterSettings, TrtlaError
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models import kv_cache as cache_room
from trtla.runtime.models.kv_cache import CacheNeed, SlotTable, cache_blocks, longest_fit

FIRST, SECOND = torch.device("cuda"), torch.device("cuda:1")


@pytest.fixture
def free(monkeypatch):
    """Free bytes by the number of the device, in place of what there is."""
    found = {}
    monkeypatch.setattr(cache_room, "_free_bytes", lambda device: found[device.index or 0])
    return found


def test_the_slots_of_scattered_blocks_are_kept_once():
    blocks = tuple(range(0, 2000, 2))
    table = SlotTable.of(blocks)
    slots = [block * TOKENS_PER_BLOCK + i for block in blocks for i in range(TOKENS_PER_BLOCK)]
    assert list(table.order) == table.slots.tolist() == slots
    assert sys.getsizeof(table.order) < 9 * len(slots)
    assert table.slots.base is not None


needs = st.builds(
    CacheNeed,
    st.sampled_from((FIRST, torch.device("cuda:0"), SECOND)),
    st.integers(1, 5000),
    st.integers(1, 900),
    st.integers(0, 10**5),
)


@given(st.lists(needs, min_size=1, max_size=4), st.integers(1, 9), st.data())
def test_all_on_a_device_have_room_for_as_many_sequences(together, batch, data):
    room = {index: data.draw(st.integers(0, 10**7)) for index in (0, 1)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_room, "_free_bytes", lambda device: room[device.index or 0])
        try:
            found = cache_blocks(together, batch)
        except TrtlaError:
            found = None
    for index in (0, 1):
        here = [i for i, need in enumerate(together) if need.place == ("cuda", index)]
        left = room[index] - sum(together[i].scratch_bytes for i in here)
        each = sum(together[i].bytes for i in here)
        if found is None:
            continue
        assert sum(found[i] * together[i].block_bytes for i in here) <= max(left, 0)
        fitting = min(batch, left // each) if here else 0
        for i in here:
            assert found[i] // together[i].blocks == fitting >= 1
    counts = [(room[i], [n for n in together if n.place[1] == i]) for i in (0, 1)]
    enough = all(
        left - sum(n.scratch_bytes for n in own) >= sum(n.bytes for n in own)
        for left, own in counts
        if own
    )
    assert (found is not None) == enough


def test_one_model_alone_gets_all_that_is_free_to_the_block(free):
    free[0] = 1000
    need = CacheNeed(FIRST, 10, 3 * TOKENS_PER_BLOCK)
    assert cache_blocks([need], 99) == [100]
    assert cache_blocks([need], 4) == [12]
    assert cache_blocks([CacheNeed(FIRST, 10, 3 * TOKENS_PER_BLOCK, 405)], 99) == [59]


def test_a_draft_model_elsewhere_takes_nothing_of_the_target(free):
    free |= {0: 100, 1: 50}
    target = CacheNeed(FIRST, 1, 10 * TOKENS_PER_BLOCK)
    draft = CacheNeed(SECOND, 1, 10 * TOKENS_PER_BLOCK)
    assert cache_blocks([target, draft], 99) == [100, 50]


@given(st.integers(0, 4000), st.integers(1, 30), st.integers(0, 3), st.booleans())
def test_the_longest_text_is_the_longest_that_all_caches_have_room_for(room, block, rate, together):
    def needs(length):  # forwards take more for longer texts
        sizes = [(FIRST, block), (FIRST if together else SECOND, 7)]
        return [CacheNeed(device, size, length + 83, rate * length) for device, size in sizes]

    def fits(length):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache_room, "_free_bytes", lambda device: room)
            try:
                return bool(cache_blocks(needs(length), 1))
            except TrtlaError:
                return False

    free = {("cuda", 0): room, ("cuda", 1): room}
    found = longest_fit(needs, 900, free)
    assert found == 0 or fits(found)
    assert found == 900 or not fits(found + 1)


def test_a_full_batch_has_room_for_usual_texts_and_for_one_of_the_longest(free):
    free[0] = 1000
    need = CacheNeed(FIRST, 10, 9 * TOKENS_PER_BLOCK, usual_seq_len=2 * TOKENS_PER_BLOCK)
    assert [cache_blocks([need], batch) for batch in (1, 4, 5, 99)] == [[9], [9], [10], [100]]


def test_where_no_sequence_fits_the_error_says_what_takes_the_memory(free):
    free |= {0: 3 * 2**30 + 50, 1: 50}
    target = CacheNeed(FIRST, 10, 3 * TOKENS_PER_BLOCK, 3 * 2**30)
    assert cache_blocks([target], 1) == [3]
    with pytest.raises(TrtlaError) as error:
        cache_blocks([target, target], 1)
    assert "cuda has memory for 0 cached tokens beside the 6.0 GiB that forwards" in str(
        error.value
    )
    assert "--draft-device" in error.value.hint
    assert "--max-num-tokens" in error.value.hint
    with pytest.raises(TrtlaError, match="cuda:1 has memory for 160 cached tokens, one sequence"):
        cache_blocks([target, CacheNeed(SECOND, 10, 6 * TOKENS_PER_BLOCK)], 1)


@pytest.mark.parametrize("sequences", [1, 2])
def test_a_draft_model_leaves_the_target_its_share(tiny_llama, monkeypatch, sequences):
    options = {"dtype": "float32", "max_batch_size": 4}
    drafter = DrafterSettings((f"draft:{tiny_llama}",))
    with LLM(tiny_llama, drafter=drafter, **options) as llm:
        need = caches(llm)
    room = sum(size for _, size in need) // 4 * sequences
    monkeypatch.setattr(cache_room, "_free_bytes", lambda device: room)
    with LLM(tiny_llama, drafter=drafter, **options) as llm:
        for (blocks, _), (all_blocks, _) in zip(caches(llm), need, strict=True):
            assert blocks * 4 // all_blocks == sequences


def caches(llm):
    """Blocks and bytes of the target's cache and of its draft model's, without the spare one."""
    executor = llm._executor
    [group] = executor._drafting.drafters._models.values()
    found = []
    for cache in (executor._cache, group.cache):
        blocks = cache.pool.num_blocks - 1
        found.append((blocks, cache.data.nbytes // (blocks + 1) * blocks))
    return found
