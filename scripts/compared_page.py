#!/usr/bin/env python3
"""docs/compared.md from the documents that scripts/compared.py has written.

    .venv/bin/python scripts/compared_page.py DOCUMENT.json ... > docs/compared.md

A document is of one model. An arm is an engine with or without drafts; each of its rounds is a
process with the time to load, the most bytes of memory, and an answer for each prompt.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

OURS = "trtla"
SHOWN = 3
"""Most differences of an arm that are shown."""
Arm = dict[str, Any]
Difference = tuple[int, int, int | None, int | None]
"""The text, the position, and the two tokens; None where a text has ended."""


def texts(arm: Arm, number: int = 0) -> list[list[int]]:
    """The texts of a round, as token ids."""
    return [answer["ids"] for answer in arm["rounds"][number]["answers"]]


def differences(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> list[Difference]:
    """The first difference of each text that is not the same in both."""
    found = []
    for text, pair in enumerate(zip(ours, theirs, strict=True)):
        places = enumerate(zip_longest(*pair))
        if first := next(((at, *two) for at, two in places if two[0] != two[1]), None):
            found.append((text, *first))
    return found


def plain_of(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """The arm of the same engine and temperature without drafts, if it has run."""
    keys = ("engine", "temperature")
    same = (one for one in arms if not one["draft"] and all(one[key] == arm[key] for key in keys))
    return next(same, None)


def drafted_differences(document: dict[str, Any]) -> Iterator[tuple[Arm, list[Difference]]]:
    """Each arm that drafts, and what it has made of the texts of its own engine without drafts."""
    for arm in document["arms"]:
        plain = plain_of(arm, document["arms"])
        if arm["draft"] and plain is not None:
            yield arm, differences(texts(plain), texts(arm))


def rate(round_: dict[str, Any]) -> float:
    """Tokens a second of all texts together, without the prompts and the first tokens."""
    answers = round_["answers"]
    tokens = sum(len(answer["ids"]) - 1 for answer in answers)
    seconds = sum(answer["seconds"] - answer["first_s"] for answer in answers)
    return float(tokens / seconds)


def first_ms(round_: dict[str, Any]) -> float:
    """The median milliseconds until a first token."""
    return float(1000 * median(answer["first_s"] for answer in round_["answers"]))


def over_rounds(arm: Arm, figure: Callable[[dict[str, Any]], float]) -> float:
    """The median of a figure over an arm's rounds."""
    return median(map(figure, arm["rounds"]))


FIGURES: dict[str, tuple[Callable[[dict[str, Any]], float], bool, int]] = {
    "tokens/s": (rate, True, 1),
    "first token, ms": (first_ms, False, 0),
    "load, s": (lambda one: float(one["load_s"]), False, 2),
    "memory, GB": (lambda one: float(one["peak_bytes"] / 1e9), False, 2),
}
"""A figure of a round, whether more is better, and its decimals."""


INTRODUCTION = """\
# Other engines on the same machine

`scripts/compared.sh` measures this and writes the page. Each engine is installed from PyPI into an
environment of its own. In each round every arm is a new process, and no other arm runs beside it;
every other round goes through them backwards. All get the same prompts as token ids and write texts
of one length, past end tokens: greedy ones at temperature 0, and sampled ones where the engine's
docs say that a seed has one text whatever is drafted. Tokens/s are of the texts without prompts and
first tokens. Figures are medians over the rounds; a single round shows texts alone, since its speed
is that of one moment. Greedy texts of random weights repeat themselves: their gains by drafts are
not those of real texts.
"""


def page(documents: Sequence[dict[str, Any]]) -> str:
    """The whole page."""
    sections = ("\n".join(_section(document)) + "\n" for document in documents)
    return "\n".join((INTRODUCTION, *sections))


def _section(document: dict[str, Any]) -> Iterator[str]:
    machine, load = document["machine"], document["load"]
    timed = document["rounds"] > 1
    yield f"## {document['model']}{'' if timed else ', texts alone'}"
    yield ""
    yield f"- {document['file']}, {document['bytes'] / 1e9:.2f} GB"
    yield (
        f"- {machine['processor']}, {machine['cores']} cores, {document['threads']} threads; "
        f"{document['date']}; load average before: {load:.1f}"
    )
    yield (
        f"- {_counted(document['texts'], 'text')} of {document['tokens']} tokens, "
        f"{_counted(document['rounds'], 'round')}; prompts: {_prompts(document)}"
    )
    if timed:
        yield from ("", "### Speed, memory, load", "", *_speeds(document["arms"]))
        yield from ("", *_ahead(document["arms"]))
    yield from ("", "### Texts that drafts change", "", *_losses(document))
    yield from ("", "### Commands", "", *_commands(document))


def _prompts(document: dict[str, Any]) -> str:
    names = ", ".join(Path(name).name for name in document["prompts"])
    halves = document["halves"]
    return names + (f", with the first halves of {halves}" if halves else "")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def _speeds(arms: Sequence[Arm]) -> Iterator[str]:
    names = list(FIGURES)
    yield _row("engine", "reads", "T", "drafts", names[0], "over its plain", *names[1:])
    yield _row("---", "---", "---:", "---", *["---:"] * 5)
    for arm in arms:
        plain = plain_of(arm, arms)
        gain = over_rounds(arm, rate) / over_rounds(plain, rate) if plain is not None else None
        cells = [f"{over_rounds(arm, how):.{digits}f}" for how, _, digits in FIGURES.values()]
        shown = "-" if gain is None or not arm["draft"] else f"{gain:.2f}"
        words = (_name(arm), arm["reads"], f"{arm['temperature']:g}", _drafts(arm))
        yield _row(*words, cells[0], shown, *cells[1:])


def _ahead(arms: Sequence[Arm]) -> Iterator[str]:
    """Sentences about figures of greedy texts in which another engine is the best."""
    said = False
    for label, of in (("Without drafts", False), ("With drafts", True)):
        those = [arm for arm in arms if bool(arm["draft"]) == of and not arm["temperature"]]
        ours = next((arm for arm in those if arm["engine"] == OURS), None)
        for figure, (how, more, digits) in FIGURES.items() if ours is not None else ():
            best = (max if more else min)(those, key=lambda arm: over_rounds(arm, how))
            if best["engine"] == OURS or ours is None:
                continue
            said = True
            values = (f"{over_rounds(one, how):.{digits}f}" for one in (best, ours))
            theirs, own = values
            yield f"- {label} {best['engine']} is ahead in {figure}: {theirs} against {own}."
    engines = {arm["engine"] for arm in arms}
    if not said and OURS in engines and len(engines) > 1:
        yield f"{OURS} is ahead in every column, with and without drafts."


def _losses(document: dict[str, Any]) -> Iterator[str]:
    yield "Texts with drafts are compared with those of the same engine without, in round 1."
    yield ""
    repeated = "plain texts that differ between rounds"
    yield _row("engine", "T", "drafts", "texts that differ", repeated, "first differences")
    yield _row("---", "---:", "---", "---:", "---:", "---")
    for arm, found in drafted_differences(document):
        plain = plain_of(arm, document["arms"])
        shown = "; ".join(_shown(one, document["pieces"]) for one in found[:SHOWN]) or "-"
        share = f"{len(found)} of {document['texts']}"
        words = (_name(arm), f"{arm['temperature']:g}", _drafts(arm))
        yield _row(*words, share, _repeated(plain), shown)


def _repeated(plain: Arm | None) -> str:
    if plain is None or len(plain["rounds"]) < 2:
        return "-"
    first, *others = (texts(plain, number) for number in range(len(plain["rounds"])))
    return str(len({one[0] for other in others for one in differences(first, other)}))


def _shown(difference: Difference, pieces: dict[str, str]) -> str:
    text, at, *two = difference
    ours, theirs = (
        "the end" if token is None else f"`{_code(pieces.get(str(token), ''))}` ({token})"
        for token in two
    )
    return f"text {text + 1}, token {at + 1}: {ours}, with drafts {theirs}"


def _code(piece: str) -> str:
    """A token's text within backticks in a table's cell."""
    return json.dumps(piece, ensure_ascii=False)[1:-1].replace("`", "'").replace("|", "\\|")


def _commands(document: dict[str, Any]) -> Iterator[str]:
    yield "```"
    yield from dict.fromkeys(arm["install"] for arm in document["arms"] if arm["install"])
    for arm in document["arms"]:
        yield arm["command"]
    yield "```"
    for one in document["left_out"]:
        yield from ("", f"{one['engine']} is not here: {one['reason']}")


def _name(arm: Arm) -> str:
    return f"{arm['engine']} {arm['version']}"


def _drafts(arm: Arm) -> str:
    return ", ".join(f"{key} {value}" for key, value in arm["draft"].items()) or "none"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the page of the named documents."""
    documents = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    print(page(documents), end="")


if __name__ == "__main__":
    main()
