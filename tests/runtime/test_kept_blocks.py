"""Which blocks are kept, found and given away, in plain integers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.reuse import check, kept, text_of
from trtla.runtime.blocks import TOKENS_PER_BLOCK, BlockPool

pieces = st.integers(0, 1).map(lambda token: (token,) * TOKENS_PER_BLOCK)
texts = st.lists(pieces, max_size=5).map(lambda parts: sum(parts, ()))


@examples(200)
@given(st.data(), st.integers(3, 12))
def test_blocks_are_used_or_free_and_found_by_all_they_hold(data, num_blocks):
    """Blocks remember what was written into them, as the cache's tensors would."""
    pool, running, held = BlockPool(num_blocks), [], {}
    for _ in range(data.draw(st.integers(1, 14))):
        event = data.draw(st.sampled_from(["start", "keep", "end"])) if running else "start"
        if event == "end":
            blocks, text, read = running.pop(data.draw(st.integers(0, len(running) - 1)))
            pool.release(blocks, text[: max(read, data.draw(st.sampled_from([0, 40, 64, 999])))])
        elif event == "keep":
            one = data.draw(st.sampled_from(running))
            one[2] = max(one[2], data.draw(st.integers(0, len(one[1]))))
            pool.keep(one[0], one[1][: one[2]])
        else:
            text = (*data.draw(texts), *[2] * data.draw(st.integers(1, 31)))
            shared = pool.find(text[:-1])
            for place, block in enumerate(shared, 1):
                assert held[block] == text[: place * TOKENS_PER_BLOCK]
            before, unused = pool.num_free, pool._kept.num_unused_of(shared)
            blocks = pool.allocate(len(text) + 9, shared)
            count = -(-(len(text) + 9) // TOKENS_PER_BLOCK)
            assert (blocks is None) == (count - len(shared) > before - unused)
            if blocks is not None:
                assert blocks[: len(shared)] == shared
                assert len(set(blocks)) == count
                for place in range(len(shared), count):
                    held[blocks[place]] = text[: (place + 1) * TOKENS_PER_BLOCK]
                running.append([blocks, text, len(shared) * TOKENS_PER_BLOCK])
        check(pool, [blocks for blocks, *_ in running])
    for blocks, text, _ in running:
        pool.release(blocks, text)
    check(pool)
    assert pool.num_free == num_blocks
    everything = pool.allocate(num_blocks * TOKENS_PER_BLOCK)
    assert sorted(everything) == list(range(num_blocks))
    assert pool.find((0,) * 99) == ()


def test_the_least_recently_used_block_goes_first_and_a_leaf_before_its_parent():
    pool = BlockPool(6)
    assert kept(pool, 1, 2) == (0, 1)
    assert kept(pool, 3, 4) == (2, 3)
    assert kept(pool, 1) == (0,)  # its second block is still the oldest
    found = []
    for blocks in (3, 4, 5, 6):
        pool.release(pool.allocate(blocks * TOKENS_PER_BLOCK))
        found.append((pool.find(text_of(1, 2)), pool.find(text_of(3, 4))))
    assert found == [((0,), (2, 3)), ((0,), (2,)), ((0,), ()), ((), ())]


def test_empty_blocks_are_taken_before_kept_ones_and_behind_the_shared_ones():
    pool = BlockPool(8)
    kept(pool, 1, 2)
    shared = pool.find(text_of(1, 2))
    assert pool.allocate(4 * TOKENS_PER_BLOCK, shared) == (0, 1, 2, 3)
    assert pool.allocate(4 * TOKENS_PER_BLOCK, shared) == (0, 1, 4, 5)
    assert pool.allocate(3 * TOKENS_PER_BLOCK) is None
    assert pool.allocate(2 * TOKENS_PER_BLOCK) == (6, 7)
    assert pool.find(text_of(1, 2)) == (0, 1)


def test_a_text_goes_on_right_behind_its_shared_blocks_where_it_can():
    """Consecutive blocks are read without a copy; here a run with lower numbers is free too."""
    pool = BlockPool(8)
    low = pool.allocate(64)
    assert kept(pool, 1, 2) == (2, 3)
    pool.release(low)
    assert pool.allocate(4 * TOKENS_PER_BLOCK, (2, 3)) == (2, 3, 4, 5)


def test_two_equal_texts_at_once_are_kept_once():
    pool = BlockPool(6)
    first, second = pool.allocate(64), pool.allocate(96)
    pool.release(first, text_of(1, 2))
    pool.release(second, text_of(1, 2, 3))
    check(pool)
    assert pool.find(text_of(1, 2, 3)) == (0, 1, 4)
    assert pool._free == {2, 3, 5}


def test_blocks_of_a_running_text_are_found_and_stay_until_all_have_ended():
    pool = BlockPool(6)
    first = pool.allocate(96)
    pool.keep(first, text_of(1))
    assert pool.find(text_of(1, 2, 3)) == first[:1]
    pool.keep(first, text_of(1, 2))
    second = pool.allocate(96, pool.find(text_of(1, 2, 4)))
    assert second[:2] == first[:2]
    check(pool, [first, second])
    pool.release(first, text_of(1, 2))
    check(pool, [second])
    assert pool.allocate(96) is not None  # the third block of the first one came back
    assert pool.allocate(32) is None
    assert pool.find(text_of(1, 2)) == second[:2]


def test_a_block_that_another_holds_stays_private_with_all_behind_it():
    """Else the second text's last block could be found when the first one's were given away."""
    pool = BlockPool(6)
    first, second = pool.allocate(64), pool.allocate(96)
    pool.keep(first, text_of(1, 2))
    pool.keep(second, text_of(1, 2, 3))
    check(pool, [first, second])
    assert pool.find(text_of(1, 2, 3)) == first
    pool.release(first, text_of(1, 2))
    pool.release(pool.allocate(96))  # takes the kept ones
    assert pool.find(text_of(1, 2, 3)) == ()
    pool.keep(second, text_of(1, 2, 3))
    check(pool, [second])
    assert pool.find(text_of(1, 2, 3)) == second
