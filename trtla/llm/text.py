"""The tokenizer: text to token ids and back, and chat templates."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from trtla.errors import PromptTooLong, UsageError
from trtla.formats.model_folder import ModelFolder
from trtla.formats.special_tokens import TOKENIZER_CONFIG, read_tokenizer_config
from trtla.formats.transformers_load import load_tokenizer, wrapped_tokenizer
from trtla.llm.chat_renderer import ChatRenderer
from trtla.llm.chat_text import ChatText, ControlTokens, chat_text, hidden_chat_text, spells_any
from trtla.llm.stops import StopText, as_stop_texts
from trtla.llm.templates import ChatTemplate, TemplateProcess
from trtla.llm.text_stream import TextStream, showing
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
)

_log = logging.getLogger(__name__)


class Tokenizer:
    """A Hugging Face tokenizer, reduced to the needs of generation."""

    def __init__(
        self,
        place: Path | ModelFolder,
        *,
        parse_special: bool = False,
        variables: Variables = NO_VARIABLES,
    ) -> None:
        """Load the tokenizer files of a folder; raises `UsageError` when they cannot be used.

        Args:
            parse_special: read control tokens' names in messages as these tokens.
            variables: of the chat template, for conversations without their own.
        """
        self.files, self._parse_special = ModelFolder.of(place), parse_special
        """Its files, as far as they were read."""
        folder = self.files.path
        if (folder / TOKENIZER_CONFIG).is_file():
            self.files.read(TOKENIZER_CONFIG)  # a broken one is reported, not read as empty
        self.config = read_tokenizer_config(self.files)
        """The contents of its config files."""
        self._chats = ChatRenderer(self._read_template, folder, variables)
        if runs_own_code(self.config):
            _ = load_tokenizer(folder)  # uses its class without that code, or refuses it
        self._plain = open_tokenizer_json(folder, self.config)
        self._noted = False
        if self._plain is None:
            _ = self.inner  # report an unusable folder now

    @cached_property
    def inner(self) -> Any:
        """The tokenizer as one of transformers, loaded on first use."""
        if self._plain is None:
            return load_tokenizer(self.folder)
        template = self._chats.template and self._chats.template.template
        return wrapped_tokenizer(self._plain, dict(named_tokens(self.config)), template)

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self.files.path

    @property
    def is_of_file(self) -> bool:
        """True if tokenizer.json defines it; else transformers implements it in Python."""
        return self._plain is not None

    def _read_template(self) -> ChatTemplate | None:
        """Read the template with those tokens that have ids: others would be letters."""
        config = self.config if self._plain is not None else self.inner.special_tokens_map
        template = read_chat_template(self.files, config)
        if template is None or not template.text():
            return None
        names = template.tokens.items()
        known = {role: name for role, name in names if self.token_id(name) is not None}
        return replace(template, tokens=known)

    @property
    def special_names(self) -> list[str]:
        """The names of its control tokens."""
        return [
            self._added[token].content for token in sorted(self.control_ids & self._added.keys())
        ]

    def token_id(self, name: str) -> int | None:
        """Return the id of a token's name, if it has one."""
        if self._plain is None:
            known = self.inner.get_vocab().get(name)
            return known if known is None else int(known)
        token = self._plain.token_to_id(name)
        return None if token is None else int(token)

    def token_name(self, token: int) -> str | None:
        """Return the name of an id, if a token has it."""
        fast = self._fast
        name = fast.id_to_token(token) if fast else self.inner.convert_ids_to_tokens(token)
        return None if name is None else str(name)

    @cached_property
    def frame(self) -> Frame:
        """The tokens around every text except conversations."""
        fast = self._fast
        return Frame() if fast is None else frame(fast, self.config, self.files)

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Encode a text; `special`: with the special tokens that the model expects around it."""
        check_text(text, "the text")
        if self._plain is not None:
            # A batch of one releases the GIL, which `encode` holds for a second a megabyte.
            (encoded,) = self._plain.encode_batch_fast([text], add_special_tokens=special)
            return tuple(encoded.ids)
        ids = self.inner.encode(text, add_special_tokens=special, verbose=False)
        return tuple(ids)  # `limits` checks lengths

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids, without special tokens."""
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
        ids = ((find(f"<0x{byte:02X}>"), byte) for byte in range(256))
        return {token: byte for token, byte in ids if token is not None}

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token, of a special token its name; empty for unknown ids.

        A character may take several tokens. The tokens of a text join to its bytes, except for a
        leading space that SentencePiece adds.
        """
        name = self.token_name(token) or ""
        if token in self.control_ids:
            return name.encode()
        if self._is_byte_level:  # as its decoder, which shows added tokens in other letters
            known = all(letter in _BYTE_LETTERS for letter in name)
            return bytes(_BYTE_LETTERS[letter] for letter in name) if known else name.encode()
        byte = self.byte_tokens.get(token)
        return name.replace("▁", " ").encode() if byte is None else bytes([byte])

    @cached_property
    def _fast(self) -> Any | None:
        """The `tokenizers.Tokenizer`; None if transformers implements the tokenizer in Python."""
        return self._plain or getattr(self.inner, "backend_tokenizer", None)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Tokens that decoded texts omit."""
        special = {token for token, content in self._added.items() if content.special}
        return frozenset(special if self._fast else {*special, *self.inner.all_special_ids})

    @cached_property
    def _added(self) -> dict[int, Any]:
        """Tokens that are matched before the vocabulary, by id."""
        fast = self._fast
        return dict(fast.get_added_tokens_decoder() if fast else self.inner.added_tokens_decoder)

    @cached_property
    def _control(self) -> ControlTokens:
        unknown = self.encode("\U0010fffd\u3400\U0001f9ff", special=False)
        return ControlTokens(self.control_ids, self._added, unknown, self._fast)

    @cached_property
    def _is_byte_level(self) -> bool:
        """True if tokens spell their bytes in GPT-2's alphabet."""
        decoder = self._fast and self._fast.decoder
        return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    @property
    def vocabulary(self) -> dict[str, int]:
        """The ids of all tokens by their names."""
        source = self.inner if self._plain is None else self._plain
        return dict(source.get_vocab())

    @property
    def added_ids(self) -> frozenset[int]:
        """Control tokens, and words added to the vocabulary."""
        return self.control_ids.union(self._added)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all tokens with their ids."""
        ids = sorted(self.vocabulary.items(), key=itemgetter(1, 0))
        return hashlib.sha256(json.dumps(ids).encode()).hexdigest()

    def stream(
        self,
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        shown: Mapping[str, str] | None = None,
    ) -> TextStream:
        """Return the text stream of an output, up to the first stop string.

        A control token's name stops a text at the token as well as where it is spelt.

        Args:
            shown: the names of control tokens that the text has in it, and how it has them.
        """
        named = (self._named(text) for text in stop)
        stops = (*as_stop_texts(stop), *(stop_text for stop_text in named if stop_text.tokens))
        known = {self.token_id(name): text for name, text in (shown or {}).items()}
        texts = {token: text for token, text in known.items() if token is not None}
        decode = showing(self.decode, texts) if texts else self.decode
        return TextStream(decode, prompt, stops, self.byte_tokens)

    def _named(self, stop: str) -> StopText:
        controls = self._control.find(stop)
        edges = [
            0,
            *(edge for control in controls for edge in (control.start, control.stop)),
            len(stop),
        ]
        texts = tuple(stop[a:b] for a, b in list(pairwise(edges))[::2])
        return StopText(texts, tuple(control.token for control in controls))

    @property
    def has_chat_template(self) -> bool:
        return self._chats.template is not None

    def template_text(self, tools: bool) -> str:
        """The text of the chat template, with or without tools; empty without one."""
        return "" if self._chats.template is None else self._chats.template.text(tools)

    @property
    def template_tokens(self) -> dict[str, str]:
        """The tokens that the chat template may name; empty without a template."""
        return {} if self._chats.template is None else self._chats.template.tokens

    def template_problem(self) -> UsageError | None:
        """Return the error of the chat template for a question; None: none, or no template."""
        try:
            if self.has_chat_template:
                self.chat_text([{"role": "user", "content": "a"}])
        except UsageError as error:
            return error
        return None

    def render_in_process(self, most_s: float) -> TemplateProcess:
        """Render the chat template in a process of its own from now on; the caller closes that.

        Args:
            most_s: seconds for a conversation.
        """
        return self._chats.in_process(most_s)

    def chat_text(self, messages: Messages, rendering: Rendering = ANSWER) -> str:
        """Render messages in the chat template, up to where the model continues.

        Raises:
            UsageError: there is no template, it fails, or it omits a user's message.
        """
        return self._chats.text(self._chats.adapted(messages, rendering), rendering)

    def chat(
        self, messages: Messages, most: int | None = None, rendering: Rendering = ANSWER
    ) -> ChatText:
        """Render messages in the chat template, with the control tokens that belong to it."""
        messages = self._chats.adapted(messages, rendering)
        render = partial(self._chats.text, rendering=rendering)
        try:
            text = render(messages)
        except UsageError:
            if self._parse_special or not spells_any(self._control, messages):
                raise
            self._check_tools(rendering)
            return hidden_chat_text(render, self._control, messages)
        self._check_length(text, most)
        if self._parse_special:
            return ChatText(text)
        self._check_tools(rendering)
        return chat_text(render, self._control, messages, text)

    def _check_tools(self, rendering: Rendering) -> None:
        """Refuse control tokens in tools, which the template writes as they are."""
        tools = json.dumps(rendering.tools, ensure_ascii=False) if rendering.tools else ""
        for token in self._control.names(tools)[:1]:
            raise UsageError(
                f"the tools hold {self.token_name(token)}, which is a control token of the model",
                "remove it from their names, descriptions and parameters",
                "tools",
            )

    def encode_chat(self, chat: ChatText) -> tuple[int, ...]:
        """Encode a conversation or a part of it."""
        text, controls, known = chat.text, chat.controls, self._control
        if controls is None or controls == known.find(text):
            ids = self.encode(text, special=False)
            if self._parse_special or known.count(ids) == known.count(known.names(text)):
                return ids
        return known.spelled(text, known.find(text) if controls is None else controls)

    def prompt_ids(
        self, prompt: str | Messages, most: int | None = None, rendering: Rendering = ANSWER
    ) -> tuple[int, ...]:
        """Encode a text, or messages in the chat template, which brings its special tokens.

        In texts, names of control tokens are these tokens; in messages they are text.

        Args:
            most: a text that must have more tokens is not encoded.
        """
        return self.read_prompt(prompt, most, rendering)[0]

    def read_prompt(
        self, prompt: str | Messages, most: int | None, rendering: Rendering
    ) -> tuple[tuple[int, ...], str]:
        """Return the ids of a prompt, and the text that was encoded."""
        if not isinstance(prompt, str):
            chat = self.chat(prompt, most, rendering)
            return self.encode_chat(chat), chat.text
        self._check_length(prompt, most)
        ids = self.encode(prompt)
        self._note_two_beginnings(ids)
        return ids, prompt

    def _note_two_beginnings(self, ids: tuple[int, ...]) -> None:
        """Note once that a text repeats the beginning that the tokenizer adds."""
        before = [self.token_id(name) for name in self.frame.before]
        count = len(before)
        if not count or self._noted or list(ids[:count]) != list(ids[count : 2 * count]):
            return
        self._noted = True
        name = "".join(self.frame.before)
        _log.warning(
            "note: a text begins with %s twice: once in the text, once by %s; omit it from the "
            "text",
            name,
            self.frame.source,
        )

    def _check_length(self, text: str, most: int | None) -> None:
        if most is None or len(text) <= most:  # the bound is at most a token a character
            return
        if (least := self.lengths.least(text)) > most:
            raise PromptTooLong(
                f"the text has at least {least} tokens, but the model takes {most} of a prompt",
                "shorten it",
            )

    @cached_property
    def lengths(self) -> TokenLengths:
        return token_lengths(self._fast)


def runs_own_code(config: Mapping[str, Any]) -> bool:
    """Return True if a tokenizer's config names code of the folder for it."""
    names = config.get("auto_map")
    return bool(names.get("AutoTokenizer") if isinstance(names, dict) else names)


def _byte_letters() -> dict[str, int]:
    """Return GPT-2's alphabet: bytes that Latin-1 can show are letters, the others are numbered."""
    shown = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
    others = (byte for byte in range(0x100) if byte not in shown)
    letters = {chr(byte): byte for byte in shown}
    return letters | {chr(0x100 + number): byte for number, byte in enumerate(others)}


_BYTE_LETTERS = _byte_letters()
"""The byte of each letter in the tokens of byte-level BPE."""
