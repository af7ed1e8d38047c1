"""--chat and --system: what is refused before a model is loaded, and the advice to use them.

The folder of the tokenizer is looked at. Where it is not known, the opened model says the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trtla.cli.shared.loading import loading
from trtla.console import Console
from trtla.errors import UsageError
from trtla.formats.folder import may_have_chat_template, no_chat_template, tokenizer_dir
from trtla.machine import process_rank
from trtla.settings.messages import Asking, Messages, is_conversation

ADVICE = "note: this model has a chat template; use --chat to ask it as a chat"


def check_template(
    console: Console,
    asking: Asking,
    folders: tuple[str, str | Path | None],
    prompts: Iterable[tuple[str, object]],
) -> None:
    """Fill in the chat template with every conversation; advise --chat where texts go without.

    Args:
        folders: the model's, and the tokenizer's where it has another.
        prompts: (name, prompt) of what is asked.

    Raises:
        UsageError: there is no template for a conversation, or it fails.
    """
    given = list(prompts)
    chats = [(name, prompt) for name, prompt in given if is_conversation(prompt)]
    folder = tokenizer_dir(Path(folders[1] or folders[0]))
    if folder is None:
        return
    if may_have_chat_template(folder):
        _fill_in(folder, chats)
        if asking.chat is None and not process_rank() and any(isinstance(p, str) for _, p in given):
            console.note(ADVICE)
    elif chats:
        raise no_chat_template(folder)


def check_texts(
    console: Console,
    asking: Asking,
    folders: tuple[str, str | Path | None],
    *,
    any_texts: bool = True,
) -> None:
    """`check_template` for texts that all become the same messages.

    Args:
        any_texts: whether there are texts that are no chats by themselves.
    """
    prompts = [("--chat", asking.prompt("text"))] if any_texts or asking.chat else []
    check_template(console, asking, folders, prompts)


def _fill_in(folder: Path, chats: list[tuple[str, Messages]]) -> None:
    if not chats:
        return
    with loading():
        from trtla.llm.text import Tokenizer

        tokenizer = Tokenizer(folder)
        for name, messages in chats:
            try:
                tokenizer.chat_text(messages)
            except UsageError as error:
                raise UsageError(f"{name}: {error.message}", error.hint) from None
