"""To which sizes steps are padded, so that few CUDA graphs serve all of them. Integers only."""

from __future__ import annotations

from bisect import bisect_left


def token_buckets(step_tokens: int, max_batch_size: int) -> tuple[int, ...]:
    """Powers of 2 below one sequence's largest step, then that step's multiples.

    Args:
        step_tokens: most tokens that a sequence feeds in a step, such as 84 for (7,7,7).
    """
    powers = [1 << i for i in range(step_tokens.bit_length()) if 1 << i < step_tokens]
    return (*powers, *(step_tokens * count for count in range(1, max_batch_size + 1)))


def batch_buckets(max_batch_size: int) -> tuple[int, ...]:
    """Powers of 2, and the largest batch."""
    powers = [1 << i for i in range(max_batch_size.bit_length()) if 1 << i < max_batch_size]
    return (*powers, max_batch_size)


def bucket_of(size: int, buckets: tuple[int, ...]) -> int | None:
    """The smallest bucket that holds `size`; None where none does."""
    index = bisect_left(buckets, size)
    return buckets[index] if index < len(buckets) else None
