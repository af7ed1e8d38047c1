"""First and last tokens of a folder's texts, and its chat template's, each with its source."""

from __future__ import annotations

from typing import Any

from trtla.errors import UsageError
from trtla.formats.chat_templates import stored_template
from trtla.formats.folder import tokenizer_dir
from trtla.formats.model_folder import ModelFolder
from trtla.formats.special_tokens import end_tokens, token_source
from trtla.llm.reading import reading_notes, template_note
from trtla.llm.text import Tokenizer


def describe_texts(folder: ModelFolder) -> dict[str, Any]:
    """Describe them in JSON types; a tokenizer that cannot be opened is among the notes.

    Keys: ends (token and source of each id that ends a text), begins (token and source, None
        without
    such a token), template (source, and the tokens that it may name), notes.
    """
    notes: list[str] = []
    tokenizer = None
    try:
        tokenizer = Tokenizer(folder) if tokenizer_dir(folder.path) is not None else None
        if tokenizer is not None:
            notes += reading_notes(tokenizer, ask=True)
            notes += filter(None, [template_note(tokenizer)])
    except UsageError as error:
        notes.append(error.message)
    find = None if tokenizer is None else tokenizer.token_id
    return {
        "ends": {
            str(token): {"token": tokenizer and tokenizer.token_name(token), "source": source}
            for token, source in sorted(end_tokens(folder, find=find).items())
        },
        "begins": None if tokenizer is None else _beginning(tokenizer),
        "template": None if tokenizer is None else _template(folder, tokenizer),
        "notes": notes,
    }


def _beginning(tokenizer: Tokenizer) -> dict[str, str] | None:
    frame = tokenizer.frame
    return {"token": "".join(frame.before), "source": frame.source} if frame.before else None


def _template(folder: ModelFolder, tokenizer: Tokenizer) -> dict[str, Any] | None:
    stored = stored_template(folder)
    if stored is None:
        return None
    named = tokenizer.template_tokens.items()
    tokens = {role: {"token": name, "source": token_source(folder, role)} for role, name in named}
    return {"source": stored[1], "tokens": tokens}
