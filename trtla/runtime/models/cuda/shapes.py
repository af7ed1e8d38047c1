"""What steps without a graph launch, in few shapes, all of which are run once at the start.

Triton compiles a kernel for half a second and more for each new set of constants, warps, types,
integers that are 1 or a multiple of 16, and addresses that are a multiple of 16. A model fixes all
of them but the tiles of attention, by the longest prompt or tree, its splits, by sequences and
context, and whether rows are drawn and filtered: other sizes of a step are not specialised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from trtla.runtime.models.cuda.inputs import Room
from trtla.runtime.models.cuda.paged_attention import LARGEST_TILE


def like_graph(exact: Room, bucket: Room) -> Room:
    """The room of a step, whose trees are attended by what a graph of this room launches."""
    return replace(
        exact, trees=bucket.trees, longest_tree=bucket.longest_tree, context=bucket.context
    )


def unsplit(exact: Room, step_tokens: int) -> Room:
    """The room of a step that no bucket holds: one split, and a tile above those of buckets.

    Args:
        step_tokens: most tokens of a tree in a bucket.
    """
    return replace(exact, longest_tree=max(exact.longest_tree, step_tokens + 1), context=0)


def rooms_to_try(
    plain: Iterable[Room], one: Room, step_tokens: int, longest: int
) -> Iterator[Room]:
    """Small steps that together launch whatever steps without a graph launch.

    Args:
        plain: rooms of buckets that there are no graphs of.
        one: of a bucket of one token.
        step_tokens: as of `unsplit`.
        longest: most tokens of a prompt.
    """
    for room in plain:
        yield replace(room, tokens=1, rows=1, moves=0)
    lengths = {min(1 << bit, longest) for bit in range(LARGEST_TILE.bit_length())}
    for length in sorted(lengths):
        prompt = replace(
            one, tokens=1 + length, prompt_tokens=length, prompts=1, longest_prompt=length
        )
        yield unsplit(replace(prompt, longest_tree=length, moves=0), step_tokens)
