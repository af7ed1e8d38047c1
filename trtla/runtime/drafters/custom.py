"""The user's own drafters, as drafters of requests: what they propose is checked and cut."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import index
from pathlib import Path
from typing import Any

from trtla.errors import TrtlaError, named, sentence
from trtla.runtime.drafters.lookup import LookupDrafter
from trtla.runtime.request import Request
from trtla.settings.custom_drafters import TokenDrafter
from trtla.settings.fields import shown

CustomDrafters = Mapping[str, Callable[[], TokenDrafter]]
"""What returns a request's drafter, by the drafters' names."""


class OneCustomDrafter(LookupDrafter):
    """A custom drafter for one request; an exception in it fails this request alone.

    Its code runs in `propose` only, where its time counts as that of the draft.

    Args:
        name: its name in settings, errors and counts.
        make: returns the object that proposes; called once.
        gamma: most tokens of a draft; what it proposes beyond them is not read.
        vocab_size: of the target.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], TokenDrafter],
        request: Request,
        gamma: int,
        vocab_size: int,
    ) -> None:
        super().__init__(gamma, request.sampling.max_output_len)
        self.source = name
        self._make, self._label, self._vocab_size = make, request.label, vocab_size
        self._drafter: Any = None
        self._text = list(request.known_ids)
        self._observed = 0
        """Tokens of the text that its `observe` has seen."""

    def observe(self, greedy: Sequence[int], committed: Sequence[int]) -> None:
        super().observe(greedy, committed)
        self._text += committed

    def _continuation(self, most: int) -> Sequence[int]:
        try:
            return self._checked(self._proposed(), most)
        except (TrtlaError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit and asyncio.CancelledError included
            raise self._failure(f"raised {sentence(error)}{_place(error)}") from error

    def _proposed(self) -> Iterable[Any]:
        if self._drafter is None:
            self._drafter = self._make()
        observe = getattr(self._drafter, "observe", None)
        if observe is not None:
            observe(self._text[self._observed :])
            self._observed = len(self._text)
        proposed: Iterable[Any] = self._drafter.propose(self._text.copy())
        return proposed

    def _checked(self, proposed: Iterable[Any], most: int) -> list[int]:
        if isinstance(proposed, (str, bytes)) or not hasattr(proposed, "__iter__"):
            raise self._failure(f"proposed {shown(proposed)}, not token ids")
        tokens = []
        for item in islice(proposed, most):
            try:
                token = index(item)
            except TypeError:
                raise self._failure(f"proposed {shown(item)}, not a token id") from None
            if not 0 <= token < self._vocab_size:
                size = self._vocab_size
                raise self._failure(f"proposed token {token}, outside the vocabulary of {size}")
            tokens.append(token)
        return tokens

    def _failure(self, what: str) -> TrtlaError:
        return TrtlaError(
            f"{self._label} failed: its drafter {self.source} {what}",
            "other requests continue; correct the drafter, whose propose(ids) returns a list of "
            f"token ids, or decode with {named('drafter')} none",
        )


def _place(error: BaseException) -> str:
    """Describe the line that raised, of a drafter whose traceback nobody sees; empty if it is
    none of the drafter's."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if frame.filename == __file__:
        return ""
    return f" ({Path(frame.filename).name}, line {frame.lineno})"
