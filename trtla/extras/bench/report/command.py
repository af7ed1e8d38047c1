"""`trtla report`: its flags and files; trtla.extras.bench.report writes the page."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from trtla.cli.shared.command import Command
from trtla.cli.shared.options import setting, switch
from trtla.cli.shared.outputs import check_new_file
from trtla.console import Console
from trtla.errors import UsageError

_STDOUT = "-"


@click.command(
    cls=Command,
    short_help="Results of bench, tune and summarize -> one HTML page.",
    config=False,
    examples=[
        "trtla report bench.json -o report.html",
        "trtla report bench.json tune.json bench.csv summary.json -o report.html",
        "trtla report bench.json --title 'Llama on 16 cores' -o - > report.html",
    ],
)
@click.argument("results", type=click.Path(dir_okay=False), nargs=-1, required=True)
@setting(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="report.html",
    help="The page; - prints it on stdout.",
)
@setting("--title", default="Decoding report", help="The title above the headline.")
@switch("--force", help="Replace the page if it exists.")
@click.pass_obj
def report(
    console: Console, results: tuple[str, ...], output: str, title: str, *, force: bool
) -> None:
    """Make one self-contained page from the files of other commands.

    RESULTS are JSON documents of bench, tune and summarize, or CSV files of bench, recognised by
    their content. The page opens without a network, light or dark.
    """
    if output.endswith("/"):
        raise UsageError(f"--output {output} is a folder", "name a file, such as report.html")
    if output != _STDOUT:
        check_new_file(Path(output), "--output", force=force)
        if any(os.path.realpath(name) == os.path.realpath(output) for name in results):
            raise UsageError(f"{output} is one of the results", "give another --output")
    from trtla.extras.bench.report.page import report as make
    from trtla.files import write_whole, written

    page = make([Path(name) for name in results], title)
    if output == _STDOUT:
        sys.stdout.write(page)
        return
    with written(Path(output), "give another --output"):
        write_whole(Path(output), page)
    console.out(f"wrote {output}: {len(page.encode()) / 1000:.0f} kB")
