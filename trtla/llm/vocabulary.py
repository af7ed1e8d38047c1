"""A check that two models have the same tokenizer: a draft model's ids must be the target's.

Padding is not vocabulary: models may have any number of rows behind the tokenizer's last token.
Added tokens are not compared either: models of one family name them as they need.
"""

from __future__ import annotations

import re
from pathlib import Path

from trtla.errors import UsageError
from trtla.formats.folder import tokenizer_dir
from trtla.formats.gguf.folder import model_folder
from trtla.formats.model import Model
from trtla.llm.text import Tokenizer

_PADDING = re.compile(r"\[(PAD|EMPTY_)\d+\]")
"""GGUF files' names of rows without a token."""
_HINT = "use a draft model with the same tokenizer"


def check_draft_model(
    path: str, draft: Model, target: Model, tokenizer: str | Path | None = None
) -> None:
    """Raise `UsageError` if a draft model reads prompts differently from its target.

    Args:
        path: the draft model's name.
        tokenizer: the folder of the target's tokenizer, if it is another.
    """
    if draft.is_encoder_decoder != target.is_encoder_decoder:
        kinds = ["a decoder alone", "an encoder-decoder"]
        raise UsageError(
            f"the draft model {draft.path} is {kinds[draft.is_encoder_decoder]}, the model "
            f"{target.path} is {kinds[target.is_encoder_decoder]}",
            "use a draft model of the same family, with the same tokenizer",
        )
    rows, known = draft.config.vocab_size, target.config.vocab_size
    folder = target.path if tokenizer is None else model_folder(tokenizer)
    ours, theirs = tokenizer_dir(draft.path), tokenizer_dir(folder)
    if ours is not None and theirs is not None:
        if not _same_file(ours, theirs):
            _check_tokens(path, Tokenizer(ours), target.path, Tokenizer(theirs))
        return
    if rows != known:
        raise UsageError(
            f"the draft model {path} has {rows} tokens, the model {target.path} has {known}, and "
            f"{path if ours is None else target.path} has no tokenizer to compare",
            f"{_HINT}, and put its files into both folders",
        )


def _same_file(first_folder: Path, second_folder: Path) -> bool:
    paths = [folder / "tokenizer.json" for folder in (first_folder, second_folder)]
    if not all(path.is_file() for path in paths):
        return False
    first, second = paths
    same_size = first.stat().st_size == second.stat().st_size
    return same_size and first.read_bytes() == second.read_bytes()


def _check_tokens(draft: str, ours: Tokenizer, target: Path, theirs: Tokenizer) -> None:
    added = ours.added_ids | theirs.added_ids
    draft_names, target_names = (
        {
            token: name
            for name, token in tokenizer.vocabulary.items()
            if token not in added and not _PADDING.fullmatch(name)
        }
        for tokenizer in (ours, theirs)
    )
    unlike = [
        token
        for token in draft_names.keys() | target_names.keys()
        if draft_names.get(token) != target_names.get(token)
    ]
    if unlike:
        token = min(unlike)
        named = (draft_names, target_names)
        names = [f"is {known[token]!r}" if token in known else "is none" for known in named]
        raise UsageError(
            f"token {token} {names[0]} in the draft model {draft} and {names[1]} in the model "
            f"{target}",
            _HINT,
        )
