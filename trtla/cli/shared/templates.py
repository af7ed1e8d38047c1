"""Checks of conversations against the model's chat template, before the model is opened."""

from __future__ import annotations

from collections.abc import Iterable
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
    is_conversation,
)

if TYPE_CHECKING:
    from trtla.data.prompt_sets import PromptSet
    from trtla.formats.model_folder import ModelFolder

ADVICE = "note: this model has a chat template; use --chat to ask it as a chat"


def check_template(
    console: Console,
    asking: Asking,
    model: str,
    options: ExecutorOptions,
    prompts: Iterable[tuple[str, object, Rendering]],
) -> None:
    """Render every conversation with the chat template; advise --chat for texts without it."""
    named = list(prompts)
    others = [item for item in named if not isinstance(item[1], str)]
    chats = [(name, prompt, end) for name, prompt, end in others if is_conversation(prompt)]
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
        if asking.chat is None and not process_rank() and len(others) < len(named):
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
    prompts = [("--chat", asking.prompt("text"), ANSWER)] if any_texts or asking.chat else []
    check_template(console, asking, model, options, prompts)


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


def _fill_in(
    folder: ModelFolder, chats: list[tuple[str, Messages, Rendering]], variables: Variables
) -> None:
    with loading():
        from trtla.llm.text import Tokenizer

        tokenizer = Tokenizer(folder, variables=variables)
        for name, messages, rendering in chats:
            try:
                tokenizer.chat_text(messages, rendering)
            except UsageError as error:
                raise UsageError(f"{name}: {error.message}", error.hint) from None
