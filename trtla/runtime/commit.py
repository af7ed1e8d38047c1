"""Where an output ends: the one place that decides how many of a step's tokens count.

It runs before K/V commit, pool, streaming and counters, so that none sees a token past the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtla.runtime.executor import FinishReason, Request
from trtla.runtime.no_answer import NO_TOKEN


def committed_prefix(
    request: Request, output_ids: Sequence[int], new_tokens: Sequence[int]
) -> tuple[int, FinishReason | None]:
    """How many of `new_tokens` join the output, and why the output ends there, if it does.

    The end token and the tokens that complete a stop string are part of the output. An end token or
    stop string that is also the last allowed token counts as the reason, not the length. Where the
    target has no answer the output has failed, unless it ended before.
    """
    room = request.sampling.max_output_len - len(output_ids)
    for count, token in enumerate(new_tokens[:room], 1):
        if token == NO_TOKEN:
            return count - 1, "failed"
        if token in request.end_ids:
            return count, "end_id"
        # The ids are put together for stop strings only: the copy grows with the output.
        if request.stop_check and request.stop_check([*output_ids, *new_tokens[:count]]):
            return count, "stop_words"
    if len(new_tokens) >= room:
        return room, "length"
    return len(new_tokens), None
