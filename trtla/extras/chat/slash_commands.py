"""The slash commands: an action, or a setting with the flag of `trtla chat` that declares it.

`/gamma 6` is parsed by the option --gamma itself: its type, its choices, its errors and its help.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from copy import copy
from textwrap import shorten
from typing import Any

import click

from trtla.errors import TrtlaError, UsageError, closest, did_you_mean
from trtla.extras.chat.settings import NAMES, SWITCHES, ChatSettings, changed, read
from trtla.files import JsonError, parse_json
from trtla.settings.drafting import DrafterSettings
from trtla.settings.fields import declared, flag_name
from trtla.settings.grammar import SETTINGS as GRAMMARS
from trtla.settings.grammar import Grammar
from trtla.settings.sampling import SamplingParams, filters_text, parse_processor

ACTIONS = {
    "help": "The everyday commands; /help all lists every command.",
    "quit": "Leave, as Ctrl-D and /exit do.",
    "clear": "Clear the screen; the conversation stays.",
    "reset": "Forget the conversation; the settings stay.",
    "retry": "Answer the last message again, with the next seed.",
    "undo": "Take the last message and its answer back.",
    "stats": "Show counters of all answers, and the use of the context.",
    "save": "Write conversation and settings to a JSON file.",
    "load": "Continue a saved conversation.",
}
_UNLISTED = ("exit", "cache")
_FILE, _STORAGE, _PROCESSOR = ("save", "load"), "set_ngramstorage", "processor"
_EVERYDAY = ("system", "max_output_len", "temperature", "seed", "lookahead", "drafter")
_END = (
    "All else is a message; // begins one with a slash. A setting without a value shows it, a "
    "switch without one toggles."
)
_FLAG = re.compile(r"--(no-)?([a-z][a-z-]*[a-z])")
_SHOWN = 24  # characters of a value in /help
_ALIASES = {
    alias: item.name
    for kind in (SamplingParams, DrafterSettings)
    for item in declared(kind).values()
    for alias in (item.option.alias, item.option.chat)
    if alias
}
"""Settings by the other names of their flags, and by those in Speculative-Decoding's chat."""


class SlashCommands:
    """The commands of a chat."""

    def __init__(self, context: click.Context) -> None:
        """`context` is that of the command `trtla chat`, whose flags become commands."""
        self._context = context
        options = (p for p in context.command.params if isinstance(p, click.Option))
        flags = {str(option.name): option for option in options if not option.hidden}
        about = declared(ChatSettings)
        for name in SWITCHES:
            flags[name] = click.Option(
                [flag_name(name)], is_flag=True, help=about[name].option.help
            )
        settable = (*NAMES, *GRAMMARS, _PROCESSOR)
        self._options = {
            name: _slash(flag, settable) for name, flag in flags.items() if name in settable
        }
        self._at_start = flags.keys() - self._options.keys()
        self.names = (*ACTIONS, *self._options)

    def find(self, typed: str) -> str:
        """Return a command's name, in any case and with `-` for `_`; raises UsageError."""
        name = typed.lower().replace("-", "_")
        name = _ALIASES.get(name, name)
        if name in (*self.names, *_UNLISTED, _STORAGE):
            return name
        near = closest(name, (*self.names, *_ALIASES, *self._at_start))
        if near in self._at_start:
            raise UsageError(f"/{typed} is not a command", f"start again with {flag_name(near)}")
        guess = f"did you mean /{_ALIASES.get(near, near)}? " if near else ""
        raise UsageError(f"/{typed} is not a command", f"{guess}/help all lists them")

    def apply(self, name: str, text: str, settings: ChatSettings) -> ChatSettings:
        """Return the settings after a command; raises UsageError if they are impossible."""
        return changed(settings, self._values(name, text, settings))

    def _values(self, name: str, text: str, settings: ChatSettings) -> dict[str, Any]:
        if name == _STORAGE:
            kind, _, order = text.partition(" ")
            both = {"ngram_kind": kind, "ngram_order": order.strip()}
            return {key: self._parsed(key, value) for key, value in both.items()}
        if name == _PROCESSOR:
            return parse_processor(":".join(text.replace(":", " ").split()))._asdict()
        setting = "grammar" if name in GRAMMARS else name
        usual = read(ChatSettings(), setting)
        if text == "none" and usual in (None, "", ()):
            return {setting: usual}
        if not text:
            return {setting: not read(settings, setting)}
        value = self._parsed(name, text)
        return {setting: Grammar.typed(GRAMMARS[name], value) if name in GRAMMARS else value}

    def _parsed(self, name: str, text: str) -> Any:
        """Convert a value as behind the flag."""
        option = self._options[name]
        try:
            words = _words(text, option) if option.multiple else text
            value = option.type_cast_value(self._context, words)
        except click.BadParameter as error:
            reason, *_ = re.split(r"\. (?:Recognized values|Did you mean)", error.message)
            kind = option.type
            guess = did_you_mean(text, kind.choices) if isinstance(kind, click.Choice) else ""
            message = f"/{name}: {reason.rstrip('.')}"
            raise UsageError(message, f"{guess}write {self._usage(name)}") from None
        return value.replace("-", "_") if isinstance(option.type, click.Choice) else value

    def needs_value(self, name: str) -> bool:
        """Return False for switches, which toggle without a value."""
        return name == _STORAGE or not self._options[name].is_flag

    def is_setting(self, name: str) -> bool:
        """Return False for actions."""
        return name in self._options or name == _STORAGE

    def shown(self, name: str, settings: ChatSettings) -> str:
        """Return a setting's value as it would be typed."""
        sampling, drafting = settings.sampling, settings.drafting
        if name == _PROCESSOR:
            return filters_text(sampling.temperature, sampling.top_k, sampling.top_p)
        if name == _STORAGE:
            return f"{drafting.ngram_kind} {drafting.ngram_order}"
        if name in GRAMMARS:
            grammar = read(settings, "grammar")
            return grammar.text if grammar and grammar.kind == GRAMMARS[name] else "none"
        value = read(settings, name)
        if self._options[name].multiple and value:
            return json.dumps(value, ensure_ascii=False)[1:-1]
        return _text(value)

    def help(self, settings: ChatSettings, *, whole: bool) -> str:
        """List commands with their present values in brackets; `whole`: all commands."""
        formatter = self._context.make_formatter()
        formatter.write_dl(list(self._records(settings, whole)))
        formatter.write_paragraph()
        formatter.write_text(_END)
        return formatter.getvalue().rstrip()

    def _records(self, settings: ChatSettings, whole: bool) -> Iterator[tuple[str, str]]:
        for name, about in ACTIONS.items():
            yield f"/{name} FILE" if name in _FILE else f"/{name}", about
        for name in self._options if whole else _EVERYDAY:
            about = self._options[name].help or ""
            about = about if whole else re.split("[.:;]", about)[0] + "."
            value = shorten(self.shown(name, settings), _SHOWN, placeholder="...")
            yield self._usage(name), f"{about} [{value}]"

    def _usage(self, name: str) -> str:
        option = self._options[name]
        if option.is_flag:
            return f"/{name} [on|off]"
        record = option.get_help_record(self._context)
        return record[0] if record else f"/{name}"

    def one_line(self, error: TrtlaError) -> str:
        """Format an error for the chat: flags become commands if there are such."""

        def spell(name: str) -> str:
            on = name.removeprefix("no_")
            if on in self.names:
                return f"/{on}" if on == name else f"/{on} off"
            return flag_name(name)

        message, hint = error.spelt(spell, start=flag_name)
        return " ".join(f"{message}{'; ' if hint else ''}{hint or ''}".split())


def _command(flag: re.Match[str], names: Collection[str]) -> str:
    """A flag in a help text as the command of its name; others stay flags."""
    name = flag[2].replace("-", "_")
    return f"/{name}{' off' * bool(flag[1])}" if name in names else flag[0]


def _slash(option: click.Option, names: Collection[str]) -> click.Option:
    """Return a flag under the name of its command."""
    command = copy(option)
    command.opts, command.secondary_opts = [f"/{option.name}"], []
    command.help = _FLAG.sub(lambda flag: _command(flag, names), option.help or "")
    return command


def _words(text: str, option: click.Option) -> list[str]:
    """The values of a flag that takes several: numbers, texts in quotes, or one text."""
    if option.type is click.INT:
        return text.replace(",", " ").split()
    if not text.startswith('"'):
        return [text]
    with suppress(JsonError):
        words = parse_json(f"[{text}]")
        if all(isinstance(word, str) for word in words):
            return list(words)
    raise click.BadParameter(f'{shorten(text, _SHOWN)!r} is not END, or "END", "\\n".')


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in (None, "", ()):
        return "none"
    if isinstance(value, tuple):
        return ",".join(v if isinstance(v, str) else f"{v[0]}:{v[1]:g}" for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
