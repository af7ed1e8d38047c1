"""Checks of conversations against the model's chat template, before the model is opened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trtla.cli.shared.model import loading, model_at
from trtla.console import Console
from trtla.errors import UsageError
from trtla.formats.chat_templates import stored_template
from trtla.formats.folder import no_chat_template, tokenizer_dir
from trtla.machine import process_rank
from trtla.settings.executor import ExecutorOptions
from trtla.settings.messages import ANSWER, NO_VARIABLES, Asking, Messages, Rendering

if TYPE_CHECKING:
    from trtla.data.prompt_sets import PromptSet

Chat = tuple[str, Messages, Rendering]
"""A conversation to be rendered, and its name."""
ADVICE = "note: this model has a chat template; --chat puts the prompt into it"


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
    folder = model_at(options.tokenizer_dir or model).folder.with_template(options.template)
    if tokenizer_dir(folder.path) is None:
        return
    if stored_template(folder) is None:
        if chats:
            raise no_chat_template(folder.path)
        return
    if asking.chat is None and not process_rank() and any_texts:
        console.advice = ADVICE
    if not chats:
        return
    with loading():
        from trtla.llm.text import Tokenizer

        tokenizer = Tokenizer(folder, variables=options.chat_template_kwargs or NO_VARIABLES)
        for name, messages, rendering in chats:
            try:
                tokenizer.chat_text(messages, rendering)
            except UsageError as error:
                raise UsageError(f"{name}: {error.message}", error.hint) from None


def check_texts(
    console: Console,
    asking: Asking,
    model: str,
    options: ExecutorOptions,
    sets: Iterable[PromptSet] | None = None,
) -> None:
    """`check_template` for texts that all become the same messages, if there are any.

    Args:
        sets: of the texts, if they are prompts of sets.
    """
    prompt = asking.prompt("text")
    chats = [] if isinstance(prompt, str) else [("--chat", prompt, ANSWER)]
    questions = [question for chosen in sets or () for question in chosen.questions]
    texts = sets is None or not all(question.is_chat for question in questions)
    check_template(console, asking, model, options, chats, any_texts=texts and not chats)
