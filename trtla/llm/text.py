"""The tokenizer: text to token ids and back, and chat templates."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from trtla.errors import PromptTooLong, TrtlaError, UsageError, first_line
from trtla.formats.chat_templates import no_default
from trtla.formats.folder import no_chat_template
from trtla.formats.model_folder import ModelFolder
from trtla.formats.special_tokens import TOKENIZER_CONFIG, read_tokenizer_config
from trtla.formats.transformers_load import fills_in_by_jinja, load_tokenizer, wrapped_tokenizer
from trtla.llm.chat_text import ChatText, ControlTokens, chat_text
from trtla.llm.conversations import Conversations
from trtla.llm.stops import StopText, as_stop_texts
from trtla.llm.templates import ChatTemplate, TemplateProcess
from trtla.llm.text_stream import TextStream
from trtla.llm.tokenizer_files import (
    TokenLengths,
    named_tokens,
    read_chat_template,
    token_lengths,
)
from trtla.llm.tokenizer_json import Frame, frame, open_tokenizer_json
from trtla.settings.fields import check_text
from trtla.settings.messages import (
    ANSWER,
    NO_VARIABLES,
    Messages,
    Rendering,
    Variables,
    written,
)

_log = logging.getLogger(__name__)
_TAKES = "give messages that it takes, or go on without it: --no-chat, in a chat /chat off"


class Tokenizer:
    """A Hugging Face tokenizer, reduced to what generation needs."""

    def __init__(
        self,
        place: Path | ModelFolder,
        *,
        parse_special: bool = False,
        variables: Variables = NO_VARIABLES,
    ) -> None:
        """Load the tokenizer files of a folder; raises `UsageError` when they cannot be used.

        Args:
            parse_special: take the names of control tokens in messages as these tokens.
            variables: of the chat template, for conversations that bring no others.
        """
        self._variables = variables
        self.files, self._parse_special = ModelFolder.of(place), parse_special
        """Where they are, and what was read of them."""
        folder = self.files.path
        self._apart: TemplateProcess | None = None
        if (folder / TOKENIZER_CONFIG).is_file():
            self.files.read(TOKENIZER_CONFIG)  # a broken one is reported, not read as empty
        self.config = read_tokenizer_config(self.files)
        """What its config files say."""
        if runs_own_code(self.config):
            _ = load_tokenizer(folder)  # which knows its class without that code, or refuses it
        self._plain = open_tokenizer_json(folder, self.config)
        self._noted = False
        if self._plain is None:
            _ = self.inner  # a folder that cannot be used is reported now

    @cached_property
    def inner(self) -> Any:
        """The tokenizer as one of transformers, loaded when it is asked for."""
        if self._plain is None:
            return load_tokenizer(self.folder)
        template = self._template and self._template.template
        return wrapped_tokenizer(self._plain, dict(named_tokens(self.config)), template)

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.files.path

    @property
    def is_of_file(self) -> bool:
        """Whether tokenizer.json says it all; else transformers has it in Python."""
        return self._plain is not None

    @property
    def special_names(self) -> list[str]:
        """The names of its control tokens."""
        return [
            self._added[token].content for token in sorted(self.control_ids & self._added.keys())
        ]

    def token_id(self, name: str) -> int | None:
        """The id of a token's name; None: it has none."""
        if self._plain is None:
            found = self.inner.get_vocab().get(name)
            return found if found is None else int(found)
        token = self._plain.token_to_id(name)
        return None if token is None else int(token)

    def token_name(self, token: int) -> str | None:
        """The name of an id; None: no token has it."""
        fast = self._fast
        found = fast.id_to_token(token) if fast else self.inner.convert_ids_to_tokens(token)
        return None if found is None else str(found)

    @cached_property
    def frame(self) -> Frame:
        """The tokens around every text that is no conversation."""
        fast = self._fast
        return Frame() if fast is None else frame(fast, self.config, self.files)

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Ids of a text; `special`: with the special tokens that the model wants in front."""
        check_text(text, "the text")
        if self._plain is not None:
            # A batch of one releases the GIL, which `encode` holds for a second a megabyte.
            (encoded,) = self._plain.encode_batch_fast([text], add_special_tokens=special)
            return tuple(encoded.ids)
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

    def token_bytes(self, token: int) -> bytes:
        """What one token spells, of a special token its name; empty for an id without a token.

        A character may take several tokens. The tokens of a text join to its bytes, but for a space
        in front that SentencePiece adds.
        """
        name = self.token_name(token) or ""
        if token in self.control_ids:
            return name.encode()
        if self._is_byte_level:  # as its decoder, which knows added tokens by other letters
            known = all(letter in _BYTE_LETTERS for letter in name)
            return bytes(_BYTE_LETTERS[letter] for letter in name) if known else name.encode()
        byte = self.byte_tokens.get(token)
        return name.replace("▁", " ").encode() if byte is None else bytes([byte])

    @cached_property
    def _fast(self) -> Any | None:
        """The `tokenizers.Tokenizer`; None where transformers has the tokenizer in Python."""
        return self._plain or getattr(self.inner, "backend_tokenizer", None)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Tokens that are left out of decoded texts."""
        special = {token for token, content in self._added.items() if content.special}
        return frozenset(special if self._fast else {*special, *self.inner.all_special_ids})

    @cached_property
    def _added(self) -> dict[int, Any]:
        """Tokens that are found in a text before anything else, by id."""
        fast = self._fast
        return dict(fast.get_added_tokens_decoder() if fast else self.inner.added_tokens_decoder)

    @cached_property
    def _control(self) -> ControlTokens:
        inner = None if self._fast else self.inner
        return ControlTokens(self.control_ids, self._added, self._fast, inner)

    @cached_property
    def _is_byte_level(self) -> bool:
        """Whether tokens spell their bytes with letters of GPT-2's alphabet."""
        decoder = self._fast and self._fast.decoder
        return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    @property
    def vocabulary(self) -> dict[str, int]:
        """The ids of all tokens by their names."""
        known = self.inner if self._plain is None else self._plain
        return dict(known.get_vocab())

    @property
    def added_ids(self) -> frozenset[int]:
        """Control tokens, and words that were added to the vocabulary."""
        return self.control_ids.union(self._added)

    @cached_property
    def fingerprint(self) -> str:
        """A hash that tokenizers share which give the same ids to the same tokens."""
        ids = sorted(self.vocabulary.items(), key=itemgetter(1, 0))
        return hashlib.sha256(json.dumps(ids).encode()).hexdigest()

    def stream(self, prompt: Sequence[int], stop: Sequence[str] = ()) -> TextStream:
        """The text of an output that continues a prompt, up to the first stop string.

        What a control token is called stops a text where it is spelt, and where the token comes.
        """
        named = (self._named(text) for text in stop)
        stops = (*as_stop_texts(stop), *(one for one in named if one.tokens))
        return TextStream(self.decode, prompt, stops, self.byte_tokens)

    def _named(self, stop: str) -> StopText:
        found = self._control.find(stop)
        edges = [0, *(edge for one in found for edge in (one.start, one.stop)), len(stop)]
        texts = tuple(stop[a:b] for a, b in list(pairwise(edges))[::2])
        return StopText(texts, tuple(one.token for one in found))

    @cached_property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @cached_property
    def _template(self) -> ChatTemplate | None:
        """With the tokens that there are: a name without an id would be spelt in letters."""
        if self._plain is None:
            return read_chat_template(self.files, self.inner.special_tokens_map)
        found = read_chat_template(self.files, self.config)
        if found is None:
            return None
        known = {role: one for role, one in found.tokens.items() if self.token_id(one) is not None}
        return replace(found, tokens=known)

    @property
    def template_text(self) -> str:
        """The chat template's text; empty without one."""
        return "" if self._template is None else self._template.text

    @property
    def template_tokens(self) -> dict[str, str]:
        """The tokens that the chat template may name; empty without a template."""
        return {} if self._template is None else self._template.tokens

    def template_problem(self) -> UsageError | None:
        """Why the chat template takes no messages at all; None: it is sound, or there is none."""
        if self._template is None:
            return None
        try:
            self._known_template().parse()
        except UsageError as error:
            return error
        except Exception as error:  # jinja2's
            return _failing(
                error, "correct it, or go on without it: --no-chat, in a chat /chat off"
            )
        return None

    def chat_text(self, messages: Messages, rendering: Rendering = ANSWER) -> str:
        """Messages in the chat template, up to where the model goes on.

        Raises:
            UsageError: there is no template, it fails, or it leaves out what a user has said.
        """
        return self._by_template(self._conversations.text, messages, rendering)

    @cached_property
    def _conversations(self) -> Conversations:
        return Conversations(self._fill_in)

    def _fill_in(self, messages: list[dict[str, Any]], rendering: Rendering) -> str:
        template, answer = self._known_template(), rendering.add_generation_prompt
        variables = {**self._variables, **rendering.chat_template_kwargs}
        if self._plain is not None or fills_in_by_jinja(self.inner):
            return str((self._apart or template).render(messages, answer, variables))
        options = {"tokenize": False, "add_generation_prompt": answer}
        return str(self.inner.apply_chat_template(messages, **options, **variables))

    def _by_template(
        self, work: Callable[[Messages, Rendering], str], messages: Messages, rendering: Rendering
    ) -> str:
        try:
            text = work(messages, rendering)
            check_text(text, "what the chat template makes")
            return text
        except TrtlaError:
            raise
        except Exception as error:  # jinja2's, and whatever a template raises
            raise self.template_problem() or _failing(error, _TAKES) from None

    def _known_template(self) -> ChatTemplate:
        template = self._template
        if template is None:
            raise no_chat_template(self.folder)
        if isinstance(template.template, dict) and "default" not in template.template:
            raise no_default(sorted(template.template))
        return template

    def render_apart(self, most_s: float) -> TemplateProcess:
        """Have a process of its own fill the chat template in from now on; the caller closes it.

        Args:
            most_s: seconds after which a conversation is given up.
        """
        self._apart = TemplateProcess(self._known_template, most_s)
        return self._apart

    def chat(
        self, messages: Messages, most: int | None = None, rendering: Rendering = ANSWER
    ) -> ChatText:
        """Messages in the chat template, with the control tokens that are the template's own."""
        text = self.chat_text(messages, rendering)
        self._check_length(text, most)
        if self._parse_special:
            return ChatText(text)
        check_text("".join(written(messages)), "the text")

        def render(others: Messages) -> str:
            return self._by_template(self._conversations.filled_in, others, rendering)

        return chat_text(render, self._control, messages, text)

    def encode_chat(self, chat: ChatText) -> tuple[int, ...]:
        """Ids of a conversation, or of a part of it."""
        text, controls = chat.text, chat.controls
        if controls is None:
            ids = self.encode(text, special=False)
            known = self._control
            if self._parse_special or known.count(ids) == known.count(known.names(text)):
                return ids
            controls = known.find(text)
        check_text(text, "the text")
        return self._control.spelled(text, controls)

    def prompt_ids(
        self, prompt: str | Messages, most: int | None = None, rendering: Rendering = ANSWER
    ) -> tuple[int, ...]:
        """Ids of a text, or of messages in the chat template, which brings its special tokens.

        In a text the names of control tokens are these tokens; in messages they are text.

        Args:
            most: a text that cannot be so few tokens is not encoded.
        """
        return self.read_prompt(prompt, most, rendering)[0]

    def read_prompt(
        self, prompt: str | Messages, most: int | None, rendering: Rendering
    ) -> tuple[tuple[int, ...], str]:
        """`prompt_ids`, and the text that they are of."""
        if not isinstance(prompt, str):
            chat = self.chat(prompt, most, rendering)
            return self.encode_chat(chat), chat.text
        self._check_length(prompt, most)
        ids = self.encode(prompt)
        self._note_two_beginnings(ids)
        return ids, prompt

    def _note_two_beginnings(self, ids: tuple[int, ...]) -> None:
        """Say once that a text brings the beginning that the tokenizer adds."""
        before = [self.token_id(name) for name in self.frame.before]
        count = len(before)
        if not count or self._noted or list(ids[:count]) != list(ids[count : 2 * count]):
            return
        self._noted = True
        name = "".join(self.frame.before)
        _log.warning(
            "note: a text begins with %s twice: once in the text, once by %s; leave it out of the "
            "text",
            name,
            self.frame.source,
        )

    def _check_length(self, text: str, most: int | None) -> None:
        least = 0 if most is None else self.lengths.least(text)
        if most is not None and least > most:
            raise PromptTooLong(
                f"the text has at least {least} tokens, but the model takes {most} of a prompt",
                "shorten it",
            )

    @cached_property
    def lengths(self) -> TokenLengths:
        return token_lengths(self._fast)


def runs_own_code(config: Mapping[str, Any]) -> bool:
    """Whether a tokenizer's config names code of the folder's own for it."""
    names = config.get("auto_map")
    return bool(names.get("AutoTokenizer") if isinstance(names, dict) else names)


def _failing(error: Exception, hint: str) -> UsageError:
    """What to say where a template raises something, or is none."""
    return UsageError(f"the model's chat template fails: {first_line(error)}", hint)


def _byte_letters() -> dict[str, int]:
    """GPT-2's alphabet: what Latin-1 can show stands for itself, other bytes for what follows."""
    shown = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
    others = (byte for byte in range(0x100) if byte not in shown)
    letters = {chr(byte): byte for byte in shown}
    return letters | {chr(0x100 + number): byte for number, byte in enumerate(others)}


_BYTE_LETTERS = _byte_letters()
"""The byte of each letter in the tokens of byte-level BPE."""
