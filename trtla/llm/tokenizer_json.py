"""A folder's tokenizer.json, which alone defines how texts are split.

tokenizer_config.json names a class of transformers, which may split texts differently; no class is
read here. The config only adds what tokenizer.json lacks: which tokens are special, and
add_bos_token and add_eos_token, which override the file's own beginning and end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtla.errors import UsageError, first_line, named
from trtla.files import refuse_stand_in
from trtla.formats.model_folder import ModelFolder
from trtla.formats.special_tokens import listed_tokens, token_name, token_source

FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Frame:
    """The tokens around every text except conversations, and the file that sets them."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    source: str = FILE


def open_tokenizer_json(folder: Path, config: dict[str, Any]) -> Any | None:
    """Open a folder's `tokenizers.Tokenizer`, with the special tokens that its config names.

    None: there is no tokenizer.json. The file is parsed in Rust, many times faster than by Python's
    json.
    """
    from tokenizers import Tokenizer

    path = folder / FILE
    if not path.is_file():
        return None
    try:
        tokenizer = Tokenizer.from_buffer(path.read_bytes())
        tokenizer.no_truncation()  # whole texts, whatever the file was saved with
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = config.get("split_special_tokens") is True
        _add_special_tokens(tokenizer, config)
        _set_frame(tokenizer, frame(tokenizer, config))
    except Exception as error:  # tokenizers raises nothing narrower
        refuse_stand_in(path)
        raise UsageError(
            f"the tokenizer in {folder} cannot be loaded: {FILE}: {first_line(error)}",
            "copy the file again, or give a folder with another tokenizer: "
            f"{named('tokenizer_dir')}",
        ) from None
    return tokenizer


def _add_special_tokens(tokenizer: Any, config: dict[str, Any]) -> None:
    """Make the config's special tokens special.

    Names outside the vocabulary get no id, unless the config lists the next one for them.
    """
    from tokenizers import AddedToken

    for number, token in sorted(listed_tokens(config).items()):
        if number == tokenizer.get_vocab_size(with_added_tokens=True):
            how = {name: value for name, value in token.items() if not name.startswith("__")}
            tokenizer.add_tokens([AddedToken(**how)])
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    for name in dict.fromkeys(_special_tokens(config)):
        known = added.get(name)
        if tokenizer.token_to_id(name) is None or (known is not None and known.special):
            continue
        special = known or AddedToken(name, normalized=False)
        special.special = True
        tokenizer.add_special_tokens([special])


def _special_tokens(config: dict[str, Any]) -> Iterator[str]:
    """Yield all names of special tokens in the config."""
    listed = (token for token in listed_tokens(config).values() if token.get("special"))
    yield from filter(None, map(token_name, listed))
    for more in map(config.get, ("additional_special_tokens", "extra_special_tokens")):
        tokens = list(more.values()) if isinstance(more, dict) else more
        yield from filter(None, map(token_name, tokens if isinstance(tokens, list) else ()))
    named = (value for name, value in config.items() if name.endswith("_token"))
    yield from filter(None, map(token_name, named))


def frame(tokenizer: Any, config: dict[str, Any], folder: ModelFolder | None = None) -> Frame:
    """Return the tokens around a text: by the config's flags, else by tokenizer.json.

    Args:
        folder: of the config, for the source.
    """
    sides = zip(("bos", "eos"), _frame_of_file(tokenizer), strict=True)
    before, after = (_by_flag(config, role, tokens) for role, tokens in sides)
    flag = config.get("add_bos_token") is True
    source = token_source(folder, "add_bos_token" if flag else FILE) if folder is not None else None
    return Frame(before, after, source or FILE)


def _by_flag(config: dict[str, Any], role: str, tokens: tuple[str, ...]) -> tuple[str, ...]:
    flag, name = config.get(f"add_{role}_token"), token_name(config.get(f"{role}_token"))
    if flag is False:
        return ()
    return (name,) if flag is True and name and name not in tokens else tokens


def _frame_of_file(tokenizer: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the special tokens that the file's post-processor puts before and behind a text."""
    step = tokenizer.post_processor
    state = {} if step is None else json.loads(step.__getstate__())
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    for processor in state.get("processors", [state]):
        if processor.get("type") == "TemplateProcessing":
            ids = {key: tuple(each["tokens"]) for key, each in processor["special_tokens"].items()}
            texts = {part["Sequence"]["id"] for part in processor["single"] if "Sequence" in part}
            if texts != {"A"}:
                raise ValueError("its post-processor has no place for a text alone")
            parts = [
                ids.get(part.get("SpecialToken", {}).get("id")) for part in processor["single"]
            ]
            at = parts.index(None)
            before, after = (sum(filter(None, side), ()) for side in (parts[:at], parts[at:]))
        elif processor.get("type") in ("RobertaProcessing", "BertProcessing"):
            before, after = (processor["cls"][0],), (processor["sep"][0],)
    return before, after


def _set_frame(tokenizer: Any, wanted: Frame) -> None:
    """Put these tokens around texts, if the file does not."""
    from tokenizers.processors import TemplateProcessing

    sides = (wanted.before, wanted.after)
    if sides == _frame_of_file(tokenizer):
        return
    ids = {name: tokenizer.token_to_id(name) for name in (*sides[0], *sides[1])}
    known = {name: token for name, token in ids.items() if token is not None}
    before, after = ([str(known[name]) for name in side if name in known] for side in sides)
    tokenizer.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B", *after],
        special_tokens=[{"id": str(n), "ids": [n], "tokens": [name]} for name, n in known.items()],
    )
