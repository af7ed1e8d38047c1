"""A tokenizer's chat template: where it is, what it makes of conversations, and how it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from trtla.errors import TrtlaError, UsageError, first_line, named
from trtla.formats.chat_templates import no_default
from trtla.formats.folder import no_chat_template
from trtla.formats.model_folder import ModelFolder
from trtla.formats.transformers_load import fills_in_by_jinja
from trtla.llm.conversations import Conversations
from trtla.llm.templates import ChatTemplate, TemplateProcess
from trtla.llm.tokenizer_files import read_chat_template
from trtla.settings.fields import check_text
from trtla.settings.messages import Messages, Rendering, Variables

_TAKES = f"give messages that it takes, or go without it: {named('no_chat')}, in a chat /chat off"


class TemplateSource(Protocol):
    """A tokenizer, as far as its template needs it."""

    files: ModelFolder
    config: dict[str, Any]

    @property
    def inner(self) -> Any: ...
    @property
    def folder(self) -> Path: ...
    @property
    def is_of_file(self) -> bool: ...
    def token_id(self, name: str) -> int | None: ...


class ChatRenderer:
    """Renders conversations for one tokenizer.

    Args:
        variables: of the template, for conversations without their own.
    """

    def __init__(self, tokenizer: TemplateSource, variables: Variables) -> None:
        self._tokenizer, self._variables = tokenizer, variables
        self._process: TemplateProcess | None = None

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The template, with those tokens that have ids: other names would be spelt in letters."""
        tokenizer = self._tokenizer
        if not tokenizer.is_of_file:
            return read_chat_template(tokenizer.files, tokenizer.inner.special_tokens_map)
        template = read_chat_template(tokenizer.files, tokenizer.config)
        if template is None:
            return None
        known = {
            role: token
            for role, token in template.tokens.items()
            if tokenizer.token_id(token) is not None
        }
        return replace(template, tokens=known)

    def problem(self) -> UsageError | None:
        """Return the error for which the template takes no messages; None: sound, or missing."""
        if self.template is None:
            return None
        try:
            self._known(tools=True).parse()
        except UsageError as error:
            return error
        except Exception as error:  # jinja2's
            return _failing(
                error, f"correct it, or go without it: {named('no_chat')}, in a chat /chat off"
            )
        return None

    def formed(self, messages: Messages, rendering: Rendering) -> Messages:
        """The messages with calls in a form that the template takes."""
        with self._explained():
            return self._conversations.formed(messages, rendering)

    def text(self, messages: Messages, rendering: Rendering) -> str:
        """Render messages, up to where the model continues."""
        return self._guarded(self._conversations.text, messages, rendering)

    def unchecked(self, messages: Messages, rendering: Rendering) -> str:
        """Render messages that may be omitted by the template."""
        return self._guarded(self._conversations.filled_in, messages, rendering)

    def in_process(self, most_s: float) -> TemplateProcess:
        """Render in a process of its own from now on; the caller closes that.

        Args:
            most_s: seconds for a conversation.
        """
        self._process = TemplateProcess(partial(self._known, tools=True), most_s)
        return self._process

    @cached_property
    def _conversations(self) -> Conversations:
        return Conversations(self._fill_in)

    def _fill_in(self, messages: list[dict[str, Any]], rendering: Rendering) -> str:
        template, answer = self._known(bool(rendering.tools)), rendering.add_generation_prompt
        variables = {**self._variables, **rendering.chat_template_kwargs}
        if rendering.tools:
            variables["tools"] = list(rendering.tools)
        tokenizer = self._tokenizer
        is_given = tokenizer.files.template is not None
        if is_given or tokenizer.is_of_file or fills_in_by_jinja(tokenizer.inner):
            return str((self._process or template).render(messages, answer, variables))
        options = {"tokenize": False, "add_generation_prompt": answer}
        return str(tokenizer.inner.apply_chat_template(messages, **options, **variables))

    def _guarded(
        self, work: Callable[[Messages, Rendering], str], messages: Messages, rendering: Rendering
    ) -> str:
        with self._explained():
            text = work(messages, rendering)
            check_text(text, "what the chat template makes")
            return text

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except TrtlaError:
            raise
        except Exception as error:  # jinja2's, or any other
            raise self.problem() or _failing(error, _TAKES) from None

    def _known(self, tools: bool) -> ChatTemplate:
        template = self.template
        if template is None:
            raise no_chat_template(self._tokenizer.folder)
        if isinstance(template.template, dict) and not template.text(tools):
            raise no_default(sorted(template.template))
        return template


def _failing(error: Exception, hint: str) -> UsageError:
    """Return the error of a template that raises something or is invalid."""
    return UsageError(f"the model's chat template fails: {first_line(error)}", hint)
