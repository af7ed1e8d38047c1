"""The tokenizer: text to token ids and back, and chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from trtla.arguments import check_text
from trtla.build.hugging_face import load_tokenizer
from trtla.errors import UsageError, first_line
from trtla.runtime.tokenizer_json import open_tokenizer_json


class Tokenizer:
    """A Hugging Face tokenizer, reduced to what generation needs."""

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer files of a folder; raises `UsageError` when they cannot be used."""
        self._folder = folder
        self._plain = open_tokenizer_json(folder)
        if self._plain is None:
            _ = self.inner  # a folder that cannot be used is told now

    @cached_property
    def inner(self) -> Any:
        """The tokenizer in transformers, loaded when it is asked for."""
        return load_tokenizer(self._folder)

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Ids of a text; `special`: with the special tokens that the model wants in front.

        Raises:
            UsageError: the text cannot be encoded in UTF-8.
        """
        check_text(text, "the text")
        if self._plain is not None:
            return tuple(self._plain.encode(text, add_special_tokens=special).ids)
        ids = self.inner.encode(text, add_special_tokens=special, verbose=False)
        return tuple(ids)  # lengths are checked by limits

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        if self._plain is not None:
            return str(self._plain.decode(list(ids), skip_special_tokens=True))
        text = self.inner.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)

    @cached_property
    def byte_tokens(self) -> dict[int, int]:
        """The byte of each byte-fallback token `<0x00>` to `<0xFF>`, by id; empty without them."""
        find = self.inner.get_vocab().get if self._plain is None else self._plain.token_to_id
        found = ((find(f"<0x{byte:02X}>"), byte) for byte in range(256))
        return {token: byte for token, byte in found if token is not None}

    @cached_property
    def has_chat_template(self) -> bool:
        """Whether the model comes with a chat template; transformers is loaded if one is likely."""
        return self.may_have_chat_template and bool(self.inner.chat_template)

    @property
    def may_have_chat_template(self) -> bool:
        """Whether the folder's files look like it; transformers is not loaded."""
        return _may_have_template(self._folder)

    def chat_text(self, messages: Sequence[dict[str, str]]) -> str:
        """Messages (role, content) in the chat template, up to where the next answer begins.

        Raises:
            UsageError: the template cannot be filled in with them.
        """
        try:
            text = self.inner.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # jinja2's, and whatever a template raises
            raise UsageError(
                f"the chat template in {self._folder} fails: {first_line(error)}",
                "go on without it: /chat off",
            ) from None
        return str(text)


def _may_have_template(folder: Path) -> bool:
    if any(folder.glob("chat_template*")):
        return True
    try:
        return '"chat_template"' in (folder / "tokenizer_config.json").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
