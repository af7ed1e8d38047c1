"""Special tokens from the files beside a model: each by one rule, with the file that names it.

Names are those of tokenizer_config.json and of the older special_tokens_map.json. Texts end at the
tokenizer's end token and at the ids of generation_config.json, or where that names none, of
config.json. GGUF files have keys of their own for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trtla.formats.gguf.header import MADE_OF
from trtla.formats.model_folder import CONFIG, ModelFolder

GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
_OLDER = "special_tokens_map.json"
FindToken = Callable[[str], int | None]
"""The id of a token's name, if there is one."""


def read_tokenizer_config(folder: ModelFolder) -> dict[str, Any]:
    """tokenizer_config.json and special_tokens_map.json as one object.

    As in transformers, the newer file goes first where it lists its added tokens.
    """
    first, second = _tokenizer_configs(folder)
    return {**folder.object(second), **folder.object(first)}


def _tokenizer_configs(folder: ModelFolder) -> tuple[str, str]:
    """The names of both files, the one that goes first in front."""
    newer = "added_tokens_decoder" in folder.object(TOKENIZER_CONFIG)
    return (TOKENIZER_CONFIG, _OLDER) if newer else (_OLDER, TOKENIZER_CONFIG)


def token_name(token: object) -> str | None:
    """The name of a token that a file has as a text or as an object."""
    name = token.get("content") if isinstance(token, dict) else token
    return name if isinstance(name, str) else None


def token_source(folder: ModelFolder, key: str) -> str | None:
    """The file and key that name a token in the tokenizer's files; None: nothing does."""
    sources = gguf_sources(folder)
    if key in sources:
        return str(sources[key])
    files = _tokenizer_configs(folder)
    name = next((file for file in files if key in folder.object(file)), None)
    return name and f"{name}, {key}"


def gguf_sources(folder: ModelFolder) -> dict[str, Any]:
    """The keys of a GGUF file that the tokens of its folder come from; empty for other folders."""
    sources = folder.object(MADE_OF).get("sources")
    return sources if isinstance(sources, dict) else {}


def end_tokens(
    folder: ModelFolder, tokenizer: ModelFolder | None = None, find: FindToken | None = None
) -> dict[int, str]:
    """All ids that end a text, with their sources; empty: no end id is known.

    Broken or absent files name none.

    Args:
        folder: the model's.
        tokenizer: the folder of its tokenizer, where that is another.
        find: the ids of the tokenizer's tokens; else they are looked up in its files.
    """
    stored = gguf_sources(folder).get("ends")
    ends = _named_ids(folder) if stored is None else {int(key): str(stored[key]) for key in stored}
    tokenizer_folder = tokenizer or folder
    name = token_name(read_tokenizer_config(tokenizer_folder).get("eos_token"))
    token = None if name is None else (find or _finder(tokenizer_folder))(name)
    if token is not None:
        source = token_source(tokenizer_folder, "eos_token") or ""
        ends[token] = "; ".join(dict.fromkeys(filter(None, (ends.get(token), source))))
    return ends


def model_end_ids(folder: ModelFolder) -> list[int]:
    """The end ids of generation_config.json, else of config.json."""
    return sorted(_named_ids(folder))


def _named_ids(folder: ModelFolder) -> dict[int, str]:
    for name in (GENERATION_CONFIG, CONFIG):
        ids = _ids(folder.object(name).get("eos_token_id"))
        if ids:
            return dict.fromkeys(ids, f"{name}, eos_token_id")
    return {}


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0]


def _finder(folder: ModelFolder) -> FindToken:
    """Return a look-up in the JSON files; the long one is read if the short one lacks the token."""

    def find(name: str) -> int | None:
        tokens = listed_tokens(folder.object(TOKENIZER_CONFIG)).items()
        listed = next((number for number, token in tokens if token_name(token) == name), None)
        return listed if listed is not None else next(_in_vocabulary(folder, name), None)

    return find


def listed_tokens(config: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The added tokens of a tokenizer's config, by id; entries in another form are skipped."""
    listed = config.get("added_tokens_decoder")
    items = listed.items() if isinstance(listed, dict) else ()
    return {int(key): token for key, token in items if key.isdecimal() and isinstance(token, dict)}


def _in_vocabulary(folder: ModelFolder, name: str) -> Iterator[int]:
    data = folder.object("tokenizer.json")
    added, model = data.get("added_tokens"), data.get("model")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and token.get("content") == name:
            yield from _ids(token.get("id"))
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from _ids(vocabulary.get(name))
