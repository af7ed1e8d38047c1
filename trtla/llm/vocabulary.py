"""Whether two models have the same tokenizer: a draft model's ids must mean what the target's do.

Padding is not vocabulary: how many rows a model has behind its tokenizer's last token is its own
affair. Nor are added tokens compared: models of one family name them as they need.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trtla.errors import UsageError
from trtla.formats.folder import tokenizer_dir
from trtla.formats.gguf.folder import model_folder
from trtla.formats.hf_config import check_same_kind
from trtla.formats.model import Model
from trtla.llm.text import Tokenizer

_PADDING = re.compile(r"\[(PAD|EMPTY_)\d+\]")
"""What GGUF files call rows without a token."""
_HINT = "use a draft model with the same tokenizer"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the token ids of a model mean."""

    name: str
    """The model's, as errors call it."""
    size: int
    """Rows of its embedding."""
    folder: Path
    """Of its tokenizer files, if there are any."""


def check_draft_model(
    path: str, draft: Model, target: Model, tokenizer: str | Path | None = None
) -> None:
    """Raise `UsageError` where a draft model reads prompts in another way than its target.

    Args:
        path: what names the draft model.
        tokenizer: the folder of the target's tokenizer, where that is another.
    """
    check_same_kind(draft.folder, target.folder)
    folder = target.path if tokenizer is None else model_folder(tokenizer)
    own = Vocabulary(str(target.path), target.vocab_size, folder)
    check_same(Vocabulary(path, draft.vocab_size, draft.path), own)


def check_same(draft: Vocabulary, target: Vocabulary) -> None:
    """Raise `UsageError` where the draft model's tokens are others than the target's."""
    folders = (tokenizer_dir(draft.folder), tokenizer_dir(target.folder))
    if None in folders:
        if draft.size != target.size:
            unknown = draft if folders[0] is None else target
            raise UsageError(
                f"the draft model {draft.name} has {draft.size} tokens, the model {target.name} "
                f"has {target.size}, and {unknown.name} has no tokenizer to compare",
                f"{_HINT}, and put its files into both folders",
            )
        return
    ours, theirs = (folder for folder in folders if folder is not None)
    if not _same_file(ours, theirs):
        _check_tokens(draft, Tokenizer(ours), target, Tokenizer(theirs))


def _same_file(one: Path, other: Path) -> bool:
    paths = [folder / "tokenizer.json" for folder in (one, other)]
    if not all(path.is_file() for path in paths):
        return False
    first, second = paths
    same_size = first.stat().st_size == second.stat().st_size
    return same_size and first.read_bytes() == second.read_bytes()


def _check_tokens(
    draft: Vocabulary, ours: Tokenizer, target: Vocabulary, theirs: Tokenizer
) -> None:
    added = ours.added_ids | theirs.added_ids
    own, other = (
        {
            token: name
            for name, token in one.vocabulary.items()
            if token not in added and not _PADDING.fullmatch(name)
        }
        for one in (ours, theirs)
    )
    unlike = [token for token in own.keys() | other.keys() if own.get(token) != other.get(token)]
    if unlike:
        token = min(unlike)
        names = [f"is {one[token]!r}" if token in one else "is none" for one in (own, other)]
        raise UsageError(
            f"token {token} {names[0]} in the draft model {draft.name} and {names[1]} in the model "
            f"{target.name}",
            _HINT,
        )
