"""What a prompt may be, text, token ids or messages, and the token ids that the model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trtla.errors import UsageError
from trtla.settings.fields import check_text, is_whole, shown
from trtla.settings.messages import Messages, check_messages, is_conversation

if TYPE_CHECKING:
    from trtla.llm.text import Tokenizer

ExpectedOutput = str | Sequence[int]
"""A text, or token ids."""
Prompt = str | Sequence[int] | Messages
"""A text; token ids; or a conversation, a list of messages, for models with a chat template."""

_EXPECTED = "give a text or a list of token ids, or a list of one for each prompt"
_PROMPTS = "give a text, a list of token ids or of messages, or a list of several of these"


def as_prompts(prompts: object) -> list[Any]:
    """The prompts of an argument that may be one of them: a list of messages is one.

    Raises:
        UsageError: there is none.
    """
    if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Sequence):
        return [prompts]
    if not prompts:
        raise UsageError("there is no prompt", "give at least one")
    alone = all(map(is_whole, prompts)) or all(isinstance(one, Mapping) for one in prompts)
    return [prompts] if alone else list(prompts)


def conversations(messages: object) -> list[Any]:
    """The conversations of an argument that may be one of them.

    Raises:
        UsageError: one of them is no list of messages.
    """
    many = as_prompts(messages)
    for one in many:
        if not is_conversation(one):
            raise UsageError(
                f"chat is asked {shown(one)}, which is no list of messages",
                'give messages such as [{"role": "user", "content": "..."}], or use generate',
            )
    return many


def prompt_ids(
    prompt: Prompt, name: str, tokenizer: Tokenizer | None, model: str, most: int | None = None
) -> tuple[int, ...]:
    """A prompt's token ids.

    Args:
        name: what errors call the prompt; `model` is what they call the model.
        most: a text that cannot be so few tokens is not encoded.

    Raises:
        UsageError: it is no prompt or empty, there is no tokenizer for it, or no chat template, or
            the template fails.
        PromptTooLong: it has more than `most` tokens for certain.
    """
    if isinstance(prompt, str):
        check_text(prompt, name)
        if not prompt:
            raise UsageError(f"{name} has an empty prompt", "give at least one character")
    elif is_conversation(prompt):
        prompt = check_messages(prompt, name)
    else:
        return _given_ids(prompt, name, "a text, token ids nor messages", _PROMPTS)
    if tokenizer is None:
        kind = "a text" if isinstance(prompt, str) else "a conversation"
        raise UsageError(
            f"{name} is {kind}, but {model} has no tokenizer files",
            "give token ids (input_ids in JSONL), or the tokenizer with --tokenizer-dir",
        )
    try:
        return tokenizer.prompt_ids(prompt, most)
    except UsageError as error:
        raise type(error)(f"{name}: {error.message}", error.hint) from None


def expected_ids(
    expected: ExpectedOutput | None, name: str, tokenizer: Tokenizer | None, model: str
) -> tuple[int, ...]:
    """Ids of the output that a prompt is expected to have; none where nothing is expected.

    Args:
        name: what errors call the prompt; `model` is what they call the model.

    Raises:
        UsageError: it is neither text nor token ids, or there is no tokenizer for it.
    """
    own = f"the expected output of {name}"
    if expected is None:
        return ()
    if not isinstance(expected, str):
        return _given_ids(expected, own, "a text nor token ids", _EXPECTED)
    check_text(expected, own)
    if tokenizer is None:
        raise UsageError(
            f"{own} is a text, but {model} has no tokenizer files",
            "give token ids, or the tokenizer with --tokenizer-dir",
        )
    return tokenizer.encode(expected, special=False)  # it continues the prompt


def prompt_text(prompt: Prompt, ids: Sequence[int], tokenizer: Tokenizer | None) -> str | None:
    """A prompt and its ids as text, a conversation as rendered; None without a tokenizer."""
    if isinstance(prompt, str):
        return prompt
    if tokenizer is None:
        return None
    if is_conversation(prompt):
        return tokenizer.chat_text(check_messages(prompt, "the prompt"))
    return tokenizer.decode(ids)


def _given_ids(given: object, name: str, kinds: str, hint: str) -> tuple[int, ...]:
    if isinstance(given, bytes) or not isinstance(given, Sequence):
        raise UsageError(f"{name} is {shown(given)}, neither {kinds}", hint)
    for item in given:
        if not is_whole(item):
            raise UsageError(f"{name} holds {shown(item)}, which is no token id", hint)
    return tuple(map(int, given))
