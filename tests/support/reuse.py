"""A toy executor that reuses blocks, and what has to hold of its blocks."""

from __future__ import annotations

from tests.support.toys import greedy_scores, hash_rule, toy_executor
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.settings.lookahead import LookaheadConfig

RULE = hash_rule(5, 3)
LONGEST = 160


def reusing(num_blocks=24, **options):
    """A toy that reuses blocks and refuses to write into kept ones."""
    executor, model = toy_executor(
        options.pop("scores", greedy_scores(RULE, 5)),
        options.pop("vocab", 5),
        options.pop("server", LookaheadConfig(2, 2, 1)),
        num_blocks=num_blocks,
        max_text_len=LONGEST,
        max_reused_len=options.pop("max_reused_len", LONGEST),
        **options,
    )
    cache, forward, move = executor._cache, model.forward_batch, executor._cache.move_later

    def writable(slots):
        assert cache.pool._kept._by_block.keys().isdisjoint(
            slot // TOKENS_PER_BLOCK for slot in slots
        )

    def fed(batch, cache):
        writable(batch.slots.tolist())
        return forward(batch, cache)

    def moved(moves):
        moves = list(moves)
        writable(target for _, target in moves)
        move(moves)

    model.forward_batch, cache.move_later = fed, moved
    return executor, model


def check_cache(executor):
    """Kept blocks hold their tokens at their places, for the next forward."""
    executor._cache.move_now()
    check(executor._cache.pool, [s.blocks for s in executor._scheduler._running])
    keys = executor._cache.layer(0)[0][:, 0].tolist()
    for block, node in executor._cache.pool._kept._by_block.items():
        first, above = 0, node.parent
        while above.block >= 0:
            first, above = first + TOKENS_PER_BLOCK, above.parent
        rows = keys[block * TOKENS_PER_BLOCK :][:TOKENS_PER_BLOCK]
        expected = [[token, first + place] for place, token in enumerate(node.tokens)]
        assert rows == expected


def prompt_of(length, salt=0):
    return [(salt + i * i // 3) % 5 for i in range(length)]


def check(pool, running=()):
    """No block both used and free, users add up, kept chains have their parents."""
    kept, free = pool._kept._by_block, pool._free
    own = [block for blocks in running for block in blocks if block not in kept]
    assert len(own) == len(set(own))
    assert free.isdisjoint(own)
    assert free.isdisjoint(kept)
    assert len(free) + len(own) + len(kept) == pool.num_blocks
    assert set(pool._kept._unused) == {block for block, node in kept.items() if not node.users}
    assert pool.num_free == len(free) + len(pool._kept._unused)
    order = {block: place for place, block in enumerate(pool._kept._unused)}
    for block, node in kept.items():
        assert node.users == sum(block in blocks for blocks in running)
        assert node.parent.children[node.tokens] is node
        parent = node.parent.block
        assert parent == -1 or kept[parent].users >= node.users
        assert order.get(block, -1) <= order.get(parent, pool.num_blocks)


def text_of(*tokens):
    return [token for token in tokens for _ in range(TOKENS_PER_BLOCK)]


def kept(pool, *tokens):
    """A text that was written and has ended."""
    text = text_of(*tokens)
    blocks = pool.allocate(len(text), pool.find(text))
    pool.release(blocks, text)
    return blocks
