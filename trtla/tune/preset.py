"""A recommendation as a preset for --config of `trtla build` and `trtla run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtla.errors import UsageError
from trtla.files import write_whole

if TYPE_CHECKING:
    from trtla.tune.settings import Tuned


def check_preset(path: Path) -> None:
    """Refuse a name that cannot become a preset, before anything is measured.

    Raises:
        UsageError: its ending is wrong, or it is a folder.
    """
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise UsageError(f"--write {path} is not a .yaml file", "give it that ending")
    if path.is_dir():
        raise UsageError(f"--write {path} is a folder", "give the name of a file")


def preset_text(tuned: Tuned, engine: str, command: str) -> str:
    """The preset, with where it comes from."""
    found = tuned.recommendation
    w, n, g = found.lookahead.as_tuple()
    source = "by the roofline" if tuned.cost.source == "roofline" else "predicted"
    measured = found.measured_speedup
    speed = f"{found.predicted_speedup:.2f}x {source}"
    speed += f", {measured:.2f}x measured" if measured is not None else ""
    lines = [
        f"Lookahead for {engine}, batch size {found.batch_size}: {speed}, over plain decoding.",
        "",
        f"  {command}",
        "",
        f"Costs: {tuned.cost.note}.",
        *(
            f"Batch size {row.batch_size}: {row.lookahead}, {row.predicted_speedup:.2f}x {source}."
            for row in found.by_batch_size
        ),
        *(
            f"Text like {row.category}: {row.lookahead}, {row.predicted_speedup:.2f}x {source}."
            for row in found.by_category
        ),
        "",
        "For trtla build --config, and trtla run --config with a Hugging Face folder or an engine",
        "that was built with this triple; with one built for more, use --request-lookahead.",
    ]
    text = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    return (
        f"{text}\n# window, ngram, verification set; max_draft_len is "
        f"{found.lookahead.max_draft_len}.\nlookahead: [{w}, {n}, {g}]\n"
    )


def write_preset(path: Path, text: str) -> None:
    """Write it whole.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        write_whole(path, text)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}", "give another path to --write"
        ) from None
