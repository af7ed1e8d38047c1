"""How deep drafts hold: the share of steps whose first, second, ... drafted position was accepted.

Plain integers, read from what steps committed; nothing is counted while they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def accepted_lengths(
    step_lengths: Sequence[int], steps: int, accepted: int
) -> tuple[int, ...] | None:
    """Accepted drafts of each step after the prompt pass; None where they cannot be told apart.

    A step commits one token of the target's own beside what it accepts. The last one may end
    within its draft, without that token: it has what the others leave of `accepted`.

    Args:
        step_lengths: committed tokens of each output, the prompt pass first.
        steps: how many steps these are; an executor may report several as one.
        accepted: their sum.
    """
    lengths = step_lengths[1:]
    if not lengths:
        return () if steps == accepted == 0 else None
    before = [length - 1 for length in lengths[:-1]]
    last = accepted - sum(before)
    known = len(lengths) == steps and last in (lengths[-1] - 1, lengths[-1])
    return (*before, last) if known else None


def accepted_per_pos(requests: Iterable[Sequence[int] | None]) -> list[float] | None:
    """Item i: in how many of all steps a draft's token at depth i + 1 was accepted; None: unknown.

    It never rises, and adds up to accepted / steps.

    Args:
        requests: the accepted lengths of each.
    """
    steps, counts = 0, list[int]()
    for lengths in requests:
        if lengths is None:
            return None
        steps += len(lengths)
        for length in lengths:
            counts += [0] * (length - len(counts))
            for place in range(length):
                counts[place] += 1
    return [count / steps for count in counts]
