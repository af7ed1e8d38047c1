"""Steps of a drafter over a text that is already known, without the model.

The text of a request is the same for every drafter, so what a draft would have had accepted is seen
by comparing it with the text. A drafter that asks the model about tokens off the text, as the
lookahead window does, is replayed exactly as long as somebody can answer.

Exact, and why:
- Drafters that see committed text only (prompt lookup, n-grams of the text): always, from one text.
- Lookahead, greedy, W = 1 and N = 2: always. Its window asks for the token after the input, which
  is the text's own.
- Lookahead in general: where each question was asked before in the same place. A window's column
  never sees columns to its right, candidates or the pool, and is seeded in order; so while all
  steps are as long as in a recorded run of (W, N, G), the window of (W' <= W, N, any G') asks what
  was asked there. The first step of another length ends that, for the cells move with the text:
  then the replay says that it does not know. With another N cells are of another age: never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtla.data.prompt_sets import Ids
from trtla.runtime.draft import Draft, Drafter, StepLimit

Reader = Callable[[int, Draft], Sequence[int] | None]
"""(place of the input token in the output, draft) -> the model's argmax after each node that the
draft reads; None: not known."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What the steps of a request came to, the prompt pass left out."""

    tokens: int
    """Tokens that the steps committed: all of the output but the first."""
    steps: int
    fed: int
    """Over all steps, input tokens included."""
    sizes: tuple[int, ...] = ()
    """Fed in each step; empty: only their sum is known."""

    @property
    def tokens_per_step(self) -> float:
        """S; 1.0 where there is no step."""
        return self.tokens / self.steps if self.steps else 1.0

    @property
    def fed_per_step(self) -> float:
        """Tokens fed in a step; 1.0 where there is none."""
        return self.fed / self.steps if self.steps else 1.0

    def fed_in(self, step: int) -> float:
        """Tokens fed in a step; the mean where no more is known."""
        return self.sizes[step] if self.sizes else self.fed_per_step


def replay(drafter: Drafter, output: Ids, read: Reader) -> Steps | None:
    """Let a new drafter go through an output; None where `read` had no answer.

    The last step's answers are not asked for: nothing follows that they could change.
    """
    drafter.observe((), output[:1])
    place, last, sizes = 0, len(output) - 1, list[int]()
    while place < last:
        draft = drafter.propose()
        sizes.append(draft.size)
        count = min(1 + accepted(draft, output[place + 1 :]), last - place)
        if place + count < last:
            said = read(place, draft) if draft.read else ()
            if said is None:
                return None
            drafter.observe(said, output[place + 1 : place + 1 + count])
        place += count
    return Steps(last, len(sizes), sum(sizes), tuple(sizes))


def accepted(draft: Draft, ahead: Sequence[int]) -> int:
    """How many drafted tokens agree with the text to come, along the best path."""
    depths = {0: 0}
    for node in draft.candidates:  # parents come before their children
        depth = depths.get(draft.parents[node - 1])
        if depth is not None and depth < len(ahead) and draft.tokens[node - 1] == ahead[depth]:
            depths[node] = depth + 1
    return max(depths.values())


class Known:
    """What the model is known to say off one text: answers of recorded runs, and the text itself.

    Args:
        output: the text that was written.
        greedy: whether its tokens are the argmax, and so answer questions along the text.
    """

    def __init__(self, output: Ids, *, greedy: bool) -> None:
        self.output, self._greedy = output, greedy
        self._said: dict[tuple[int, Ids], int] = {}

    def learn(self, place: int, draft: Draft, said: Sequence[int]) -> None:
        """Keep what a run's draft was answered."""
        for node, token in zip(draft.read, said, strict=True):
            self._said[place, draft.tokens_to(node)] = token

    def read(self, place: int, draft: Draft) -> list[int] | None:
        """The `Reader` of what is known."""
        said = []
        for node in draft.read:
            token = self._after(place, draft.tokens_to(node))
            if token is None:
                return None
            said.append(token)
        return said

    def _after(self, place: int, tokens: Ids) -> int | None:
        ahead = place + 1 + len(tokens)
        on_text = self._greedy and tokens == self.output[place + 1 : ahead]
        if on_text and ahead < len(self.output):
            return self.output[ahead]
        return self._said.get((place, tokens))


class Recorder(Drafter):
    """A drafter that passes everything on, and keeps the answers and what each step fed."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.said: list[list[int]] = []
        """Of each step; it stays empty where nothing was asked."""
        self.sizes: list[int] = []
        """Tokens fed in each step."""

    def propose(self, limit: StepLimit | None = None) -> Draft:
        """The inner drafter's."""
        draft = self._inner.propose(limit)
        self.sizes.append(draft.size)
        return draft

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        """Keep what the model said, then pass it on."""
        self.said.append(list(greedy))
        self._inner.observe(greedy, committed)


def learn_run(drafter: Drafter, known: Known, said: Sequence[Sequence[int]]) -> Steps | None:
    """Teach what a `Recorder` kept, by going the same way again with a new drafter.

    Args:
        said: per forward, the prompt pass first.
    """
    left = iter(said[1:])

    def read(place: int, draft: Draft) -> Sequence[int] | None:
        answers = next(left, None)
        if answers is None or len(answers) != len(draft.read):
            return None
        known.learn(place, draft, answers)
        return answers

    return replay(drafter, known.output, read)
