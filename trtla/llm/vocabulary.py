"""Whether two models have the same tokenizer: a draft model's ids must mean what the target's do.

Padding is not vocabulary: how many rows a model has behind its tokenizer's last token is its own
affair. Nor are added tokens compared: models of one family name them as they need.
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
"""What GGUF files call rows without a token."""
_HINT = "use a draft model with the same tokenizer"


def check_draft_model(
    path: str, draft: Model, target: Model, tokenizer: str | Path | None = None
) -> None:
    """Raise `UsageError` where a draft model reads prompts in another way than its target.

    Args:
        path: what names the draft model.
        tokenizer: the folder of the target's tokenizer, where that is another.
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


def _same_file(one: Path, other: Path) -> bool:
    paths = [folder / "tokenizer.json" for folder in (one, other)]
    if not all(path.is_file() for path in paths):
        return False
    first, second = paths
    same_size = first.stat().st_size == second.stat().st_size
    return same_size and first.read_bytes() == second.read_bytes()


def _check_tokens(draft: str, ours: Tokenizer, target: Path, theirs: Tokenizer) -> None:
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
            f"token {token} {names[0]} in the draft model {draft} and {names[1]} in the model "
            f"{target}",
            _HINT,
        )
