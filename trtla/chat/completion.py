"""What a half-typed line may become: names of commands, then their values. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtla.chat.arguments import Known, Pair
from trtla.chat.commands import BY_NAME, TABLE, Command


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text that may replace the last `length` characters of the line."""

    text: str
    length: int
    help: str = ""


def complete(line: str, known: Known) -> Iterator[Candidate]:
    """Candidates for a line up to the cursor; none for messages."""
    if not line.startswith("/"):
        return
    name, blank, rest = line[1:].partition(" ")
    if not blank:
        for command in TABLE:
            if command.name.startswith(name.lower()):
                yield Candidate(f"/{command.name}", len(line), command.help)
    elif found := BY_NAME.get(name.lower().replace("-", "_")):
        by_kind = _side if isinstance(found.argument, Pair) else _values
        yield from by_kind(found, rest.lstrip(), known)


def _values(command: Command, text: str, known: Known) -> Iterator[Candidate]:
    for choice in command.argument.choices(text, known):
        if choice.startswith(text):
            yield Candidate(choice, len(text))


def _side(command: Command, text: str, known: Known) -> Iterator[Candidate]:
    """The setting that is being typed last in `A | B`."""
    last = text.replace(";", "|").rpartition("|")[2].lstrip()
    name, blank, rest = last.partition(" ")
    if blank and name in BY_NAME:
        yield from _values(BY_NAME[name], rest.lstrip(), known)
        return
    for one in TABLE:
        if one.paths and one.name.startswith(last):
            yield Candidate(one.name, len(last), one.help)
