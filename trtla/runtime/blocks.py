"""The K/V cache's blocks as integers: free, owned by sequences, or kept for texts with its tokens.

A kept block is found by all tokens up to its last one, so two texts share a block only if both
begin with these. Its owner may still run, so readers are counted. Texts of different spaces share
no block: a space, below 0 and so no token, precedes the first block's tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from trtla.formats import config

Tokens = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Kept:
    block: int
    tokens: Tokens
    parent: _Kept | None
    children: dict[Tokens, _Kept] = field(default_factory=dict)
    users: int = 0
    """Running sequences that read it; every reader of a block reads its parent too."""


class KeptBlocks:
    """Full blocks of texts, running or ended, and how many running sequences use each.

    Invariants: a sequence that uses a block uses its parent, and of two blocks without users a
    child was used less recently than its parent. So the least recently used block never has
    children, and every kept block can be reached.
    """

    def __init__(self, tokens_per_block: int) -> None:
        self._size = tokens_per_block
        self._root = _Kept(-1, (), None)
        self._by_block: dict[int, _Kept] = {}
        self._unused: OrderedDict[int, _Kept] = OrderedDict()  # the least recently used one first

    @property
    def num_unused(self) -> int:
        return len(self._unused)

    def find(self, text: Sequence[int], space: int = 0) -> tuple[int, ...]:
        """Find the longest chain of its space's kept blocks that this text begins with."""
        chain: list[int] = []
        node: _Kept | None = self._root
        for tokens in self._pieces(text, space):
            node = node.children.get(tokens) if node else None
            if node is None:
                break
            chain.append(node.block)
        return tuple(chain)

    def num_unused_of(self, chain: Sequence[int]) -> int:
        """Count the blocks of a chain that no sequence reads yet."""
        return sum(block in self._unused for block in chain)

    def use(self, chain: Sequence[int]) -> None:
        """Begin a sequence with a chain; none of it is evicted until the sequence ends."""
        for block in chain:
            self._by_block[block].users += 1
            self._unused.pop(block, None)

    def keep(self, blocks: Sequence[int], text: Sequence[int], space: int = 0) -> None:
        """Keep blocks that a running sequence has filled with `text`: others may read them.

        If another sequence's block holds the same tokens, this one and those behind it are not
        kept: they would be below a block that it does not use. They may be kept when it ends.

        Args:
            blocks: all of its blocks, kept ones first.
            text: their tokens from the first one on, as far as others may read them.
        """
        chain = list(takewhile(self._by_block.__contains__, blocks))
        node = self._by_block[chain[-1]] if chain else self._root
        start = len(chain)
        for block, tokens in zip(blocks[start:], self._pieces(text, space, start), strict=False):
            if tokens in node.children:
                return
            node = self._add(node, block, tokens)
            node.users = 1

    def end(self, blocks: Sequence[int], text: Sequence[int], space: int = 0) -> list[int]:
        """End a sequence: keep its blocks that are full of `text`, and return the others.

        Args:
            blocks: all of its blocks, shared ones first.
            text: their tokens from the first one on, as far as others may read them.
        """
        shared = [self._by_block[block] for block in blocks if block in self._by_block]
        for node in shared:
            node.users -= 1
        chain = self._chain(blocks, text, space)
        for node in reversed(max(shared, chain, key=len)):  # children first: see the invariant
            if not node.users:
                self._unused[node.block] = node
                self._unused.move_to_end(node.block)
        return [block for block in blocks if block not in self._by_block]

    def _chain(self, blocks: Sequence[int], text: Sequence[int], space: int) -> list[_Kept]:
        """Return the text's chain; its blocks are added unless equal ones are kept already."""
        chain, node = [], self._root
        for block, tokens in zip(blocks, self._pieces(text, space), strict=False):
            node = node.children.get(tokens) or self._add(node, block, tokens)
            chain.append(node)
        return chain

    def _add(self, parent: _Kept, block: int, tokens: Tokens) -> _Kept:
        node = parent.children[tokens] = self._by_block[block] = _Kept(block, tokens, parent)
        return node

    def evict(self) -> int:
        """Forget the least recently used block; there must be one without users."""
        block, node = self._unused.popitem(last=False)
        if node.parent is not None:
            del node.parent.children[node.tokens]
        del self._by_block[block]
        return block

    def _pieces(self, text: Sequence[int], space: int, first: int = 0) -> Iterator[Tokens]:
        """Cut the text into whole blocks, from the `first` on."""
        for end in range((first + 1) * self._size, len(text) + 1, self._size):
            tokens = tuple(text[end - self._size : end])
            yield (space, *tokens) if space and end == self._size else tokens


TOKENS_PER_BLOCK = config.TOKENS_PER_BLOCK


class BlockPool:
    """Free and used blocks, as integers; consecutive ones can be read without a copy.

    Blocks that are kept for later texts count as free: they are evicted when no others are left.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.reset()

    def reset(self) -> None:
        """Take all blocks back from all sequences, and keep none."""
        self._free = set(range(self.num_blocks))
        self._kept = KeptBlocks(TOKENS_PER_BLOCK)

    def reserve(self) -> int:
        """Withdraw the last block permanently: `reset` does not free it, and it counts no more."""
        last = self.num_blocks - 1
        if last not in self._free:
            raise ValueError(f"block {last} is in use")
        self.num_blocks = last
        self._free.discard(last)
        return last

    @property
    def num_free(self) -> int:
        return len(self._free) + self._kept.num_unused

    def find(self, text: Sequence[int], space: int = 0) -> tuple[int, ...]:
        """Find kept blocks of a text's beginning; to be read only, after `allocate`."""
        return self._kept.find(text, space)

    def allocate(self, num_tokens: int, shared: tuple[int, ...] = ()) -> tuple[int, ...] | None:
        """Take blocks for a number of tokens, or None when too few are free.

        Args:
            num_tokens: including those in shared blocks.
            shared: the result of `find`; these blocks come first.
        """
        count = -(-num_tokens // TOKENS_PER_BLOCK) - len(shared)
        if count > self.num_free - self._kept.num_unused_of(shared):
            return None
        self._kept.use(shared)
        while len(self._free) < count:
            self._free.add(self._kept.evict())
        blocks = self._choose(count, shared[-1] + 1 if shared else 0)
        self._free.difference_update(blocks)
        return shared + blocks

    def _choose(self, count: int, first: int) -> tuple[int, ...]:
        """Choose free blocks from `first` on, else the first consecutive ones, else the lowest."""
        following = range(first, first + count)
        if self._free.issuperset(following):
            return tuple(following)
        ordered = sorted(self._free)
        for start in range(len(ordered) - count + 1):
            if ordered[start + count - 1] - ordered[start] == count - 1:
                return tuple(ordered[start : start + count])
        return tuple(ordered[:count])

    def keep(self, blocks: tuple[int, ...], text: Sequence[int], space: int = 0) -> None:
        """Share those of a running sequence's blocks that are full of `text`."""
        self._kept.keep(blocks, text, space)

    def release(self, blocks: tuple[int, ...], text: Sequence[int] = (), space: int = 0) -> None:
        """Give blocks back, and keep those that are full of `text`, which they hold in order."""
        self._free.update(self._kept.end(blocks, text, space))
