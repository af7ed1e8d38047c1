"""A drafter that notes the hidden states that it gets, and the states that it has to get."""

from __future__ import annotations

import numpy as np

from tests.support.compiled import sequences
from trtla.runtime.draft import NO_DRAFT, Draft, NoDrafter
from trtla.runtime.sequence import Feed


class Seen(NoDrafter):
    """Drafts two tokens of a known text at a time, beside a wrong one or before it.

    Args:
        text: the output, and what would follow it.
    """

    wants_states = True

    def __init__(self, text=(), *, chain=False):
        self.text, self.done, self.parts, self.chain = tuple(text), 0, [], chain

    def propose(self):
        right = self.text[self.done : self.done + 2]
        if not right:
            return NO_DRAFT
        if self.chain:
            return Draft.chain((*right, 7))
        return Draft(((right[0] + 1) % 75, *right), (0, 0, 2)[: 1 + len(right)])

    def observe(self, greedy, committed):
        self.done += len(committed)

    def saw_hidden(self, first, states):
        assert states.shape[1]
        self.parts.append((first, states.copy()))

    def states(self):
        """The place of the first token, and the states of all, which came once and in order."""
        ends = [first + states.shape[1] for first, states in self.parts]
        assert [first for first, _ in self.parts[1:]] == ends[:-1]
        return self.parts[0][0], np.concatenate([states for _, states in self.parts], axis=1)


def whole_states(model, text):
    """The states of a text that is fed alone and at once."""
    cache = model.new_cache(1 + len(text) // 32)
    (running,) = sequences(cache, [tuple(text)], room=0)
    running.drafter = Seen()
    return model.forward([Feed.prompt(running, len(text), True)], cache).hidden


def check_states(model, seen, text, exact, start=0):
    """A drafter has the states of a text from `start` on; the newest token has not been fed."""
    first, found = seen.states()
    assert (first, found.shape[1]) == (start, len(text) - 1 - start)
    wanted = whole_states(model, text[:-1])[:, start:]
    if exact:
        assert np.array_equal(found, wanted)
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
