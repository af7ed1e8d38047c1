"""Checks of conversations against the model's chat template, before the model is opened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trtla.cli.shared.model import loading, model_at
from trtla.console import Console
from trtla.errors import UsageError
from trtla.formats.chat_templates import stored_template, unused_variables
from trtla.formats.folder import no_chat_template, tokenizer_dir
from trtla.machine import process_rank
from trtla.settings.executor import ExecutorOptions
from trtla.settings.messages import (
    ANSWER,
    NO_VARIABLES,
    Asking,
    Messages,
    Rendering,
    Variables,
)

if TYPE_CHECKING:
    from trtla.data.prompt_sets import PromptSet
    from trtla.formats.model_folder import ModelFolder

Chat = tuple[str, Messages, Rendering]
"""A conversation to be rendered, and its name."""
ADVICE = "note: this model has a chat template; use --chat to ask it as a chat"


def check_template(
    console: Console,
    asking: Asking,
    model: str,
    options: ExecutorOptions,
    chats: Sequence[Chat],
    *,
    any_texts: bool,
) -> None:
    """Render every conversation with the chat template; advise --chat where there are texts."""
    variables = options.chat_template_kwargs or NO_VARIABLES
    folder = model_at(options.tokenizer_dir or model).folder
    folder = folder.with_template(options.template)
    if tokenizer_dir(folder.path) is None:
        return
    if stored := stored_template(folder):
        if chats:
            _fill_in(folder, chats, variables)
        if unused := unused_variables(stored[0] if chats else None, variables):
            console.note(f"note: {unused}")
        if asking.chat is None and not process_rank() and any_texts:
            console.advice = ADVICE
    elif chats:
        raise no_chat_template(folder.path)


def check_texts(
    console: Console,
    asking: Asking,
    model: str,
    options: ExecutorOptions,
    *,
    any_texts: bool = True,
) -> None:
    """`check_template` for texts that all become the same messages, if there are any."""
    prompt = asking.prompt("text")
    chats = [] if isinstance(prompt, str) else [("--chat", prompt, ANSWER)]
    check_template(console, asking, model, options, chats, any_texts=any_texts and not chats)


def check_sets(
    console: Console,
    asking: Asking,
    model: str,
    options: ExecutorOptions,
    sets: Iterable[PromptSet],
) -> None:
    """`check_texts` for the prompts of sets."""
    texts = any(not question.is_chat for chosen in sets for question in chosen.questions)
    check_texts(console, asking, model, options, any_texts=texts)


def _fill_in(folder: ModelFolder, chats: Sequence[Chat], variables: Variables) -> None:
    with loading():
        from trtla.llm.text import Tokenizer

        tokenizer = Tokenizer(folder, variables=variables)
        for name, messages, rendering in chats:
            try:
                tokenizer.chat_text(messages, rendering)
            except UsageError as error:
                raise error.within(f"{name}: ") from None
