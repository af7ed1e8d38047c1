#!/usr/bin/env python3
"""Draws a chat as the terminal shows it: what docs/images/chat.svg is made with.

    .venv/bin/python scripts/chat_picture.py --engine-dir DIR -o docs/images/chat.svg \\
        'What is the capital of France?' 'And of Italy?' '/retry'

The lines are typed one after another into a real chat with the model, before which every line is
asked once, so that the speeds are those of a warm process. The session and the printer are those of
`trtla chat`; the first line and the status row are added.
"""

from __future__ import annotations

import argparse
import io
import os
from contextlib import redirect_stdout
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console as RichConsole
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from trtla import LLM
from trtla.chat.session import Session
from trtla.chat.settings import ChatSettings, changed
from trtla.chat.terminal import WELCOME, TerminalPrinter, toolbar
from trtla.console import Console

THEME = TerminalTheme(
    (24, 27, 33),
    (220, 223, 228),
    [
        *((24, 27, 33), (224, 108, 117), (126, 214, 120), (229, 192, 123)),
        *((97, 175, 239), (198, 120, 221), (86, 182, 194), (220, 223, 228)),
    ],
)
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def main() -> None:
    """Draw the picture that the flags ask for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine-dir", required=True)
    parser.add_argument("--shown", help="what the picture has for --engine-dir; default: its name")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-output-len", type=int, default=128)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("lines", nargs="+")
    args = parser.parse_args()
    os.environ["COLUMNS"] = str(args.columns)  # the printer asks for the window's
    args.output.write_text(svg(transcript(args), args.columns), encoding="utf-8")


def transcript(args: argparse.Namespace) -> str:
    """Everything in the window, with ANSI colours."""
    settings = changed(ChatSettings(), {"sampling.max_output_len": args.max_output_len})
    console, shown = Console(color="always"), args.shown or Path(args.engine_dir).name
    with LLM(args.engine_dir, dtype=args.dtype, max_batch_size=1, block_reuse=True) as llm:
        typed(Session(llm, settings), console, args.lines)
        session = Session(llm, settings)
        parts = [
            f"$ trtla chat --engine-dir {shown}\nnote: runs on {llm.description}\n",
            console.styled(WELCOME, dim=True) + "\n",
            typed(session, console, args.lines),
            console.styled("> ", bold=True) + "\n\n",
            console.styled(toolbar(session).ljust(args.columns), reverse=True),
        ]
    return "".join(parts)


def typed(session: Session, console: Console, lines: list[str]) -> str:
    """The lines and what is printed below each."""
    printer, printed = TerminalPrinter(session, console), io.StringIO()
    with redirect_stdout(printed):
        for line in lines:
            console.out(f"{console.styled('>', bold=True)} {line}")
            for event in session.handle(line):
                printer.show(event)
    return printed.getvalue()


def svg(text: str, columns: int) -> str:
    """The text as a window, in a font that is on the reader's machine."""
    console = RichConsole(record=True, width=columns, file=io.StringIO(), highlight=False)
    console.print(Text.from_ansi(text))
    before, rest = CONSOLE_SVG_FORMAT.split("@font-face", 1)
    after = rest[rest.index(".{unique_id}-matrix") :].replace("Fira Code, monospace", FONT)
    return console.export_svg(
        title="trtla chat", theme=THEME, code_format=before + after, unique_id="chat"
    )


if __name__ == "__main__":
    main()
