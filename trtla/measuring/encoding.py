"""Prompts as token ids for arms, cut to the room that a model has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtla.data.prompt_sets import Ids
from trtla.errors import UsageError
from trtla.llm.chat_text import ChatText
from trtla.settings.messages import AS_TEXT, Asking, Messages, joined

if TYPE_CHECKING:
    from trtla.llm.llm import LLM
    from trtla.llm.text import Tokenizer
    from trtla.runtime.limits import ExecutorLimits


def prompt_room(limits: ExecutorLimits, length: int) -> int:
    """Return the most tokens of a prompt with an output of this length, or refuse."""
    room = min(limits.max_input_len, limits.max_text_len - length)
    if room < 1:
        raise UsageError(
            f"--max-output-len {length} leaves no room for a prompt: prompt and output "
            f"together may have {limits.max_text_len} tokens",
            f"lower --max-output-len, or {limits.text_len_hint}",
        )
    return room


def take_tokenizer(llm: LLM) -> Tokenizer:
    """Take the tokenizer away from the model, so that no arm pays for text."""
    tokenizer, llm.tokenizer = llm.tokenizer, None
    if tokenizer is None:
        raise UsageError(
            f"{llm.engine.name} has no tokenizer files", "give them with --tokenizer-dir"
        )
    return tokenizer


class Encoder:
    """An encoder of prompts and questions as token ids.

    Args:
        asking: the form of prompts.
        room: the most tokens of a prompt; None: any number.
    """

    def __init__(
        self, tokenizer: Tokenizer, asking: Asking = AS_TEXT, room: int | None = None
    ) -> None:
        self.cut = 0
        """The number of prompts that were cut so far."""
        self._tokenizer, self._asking, self._room = tokenizer, asking, room

    def ids(self, prompt: str | Messages) -> Ids:
        """Encode a prompt. A long one loses its beginning; the chat template stays whole."""
        ids = self._tokenizer.prompt_ids(prompt)
        if self._room is None or len(ids) <= self._room:
            return ids
        self.cut += 1
        return ids[-self._room :] if isinstance(prompt, str) else self._shortened(prompt, ids)

    def _shortened(self, messages: Messages, ids: Ids) -> Ids:
        """Cut the beginnings of contents, the first message's first; system messages stay whole."""
        kept, room = list(messages), self._room or 0
        for index, message in enumerate(messages):
            words = "" if message["role"] == "system" else joined(message["content"])
            content = self._tokenizer.encode_chat(ChatText(words, ()))
            keep = len(content)
            while keep and len(ids) > room:
                keep = max(0, keep - (len(ids) - room))
                text = self._tokenizer.decode(content[len(content) - keep :])
                kept[index] = {**message, "content": text}
                ids = self._tokenizer.prompt_ids(kept)
        if len(ids) > room:
            raise UsageError(
                f"the chat template takes {len(ids)} tokens without any text, and there is room "
                f"for {room}",
                "shorten --system or the output, or rebuild with larger limits",
            )
        return ids
