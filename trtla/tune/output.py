"""The files of a tuning: tune.json, and a preset for --config."""

from __future__ import annotations

import json
from pathlib import Path

from trtla.errors import UsageError
from trtla.files import write_whole
from trtla.results.documents import Choice, Recommendation, Tune
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig


def write_document(tuned: Tune, path: Path) -> None:
    """Write the JSON document, which `trtla report` reads.

    Raises:
        UsageError: the file cannot be written.
    """
    _write(path, json.dumps(tuned.document(), indent=1) + "\n", "--output-dir")


def check_folder(folder: Path) -> None:
    """Make the folder and see that it can be written to.

    Raises:
        UsageError: it cannot.
    """
    probe = folder / ".trtla-tune"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written to: {error.strerror or error}",
            "give another --output-dir",
        ) from None


def check_preset(path: Path) -> None:
    """Refuse a name that cannot become a preset, before anything is measured.

    Raises:
        UsageError: its ending is wrong, or it is a folder.
    """
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise UsageError(f"--write {path} is not a .yaml file", "give it that ending")
    if path.is_dir():
        raise UsageError(f"--write {path} is a folder", "give the name of a file")


def write_preset(tuned: Tune, path: Path) -> bool:
    """Write the recommendation as a preset; False: nothing is ahead of plain decoding.

    `auto` or a triple, whichever was measured ahead; for an engine that is still to be built, the
    triple that the roofline predicts, and the preset says so.

    Raises:
        UsageError: the file cannot be written.
    """
    chosen = tuned.recommendation
    unmeasured = chosen.measured_speedup is None and not _by_roofline(tuned)
    if not chosen.keep_auto and (unmeasured or _is_plain(chosen)):
        return False
    _write(path, preset_text(tuned), "--write")
    return True


def preset_text(tuned: Tune) -> str:
    """The preset, with where it comes from."""
    found = tuned.recommendation
    kind = "by the roofline, not measured" if _by_roofline(tuned) else "predicted"
    lines = [
        f"Lookahead for {tuned.engine}, batch size {found.batch_size}: {_described(found, kind)}, "
        "over plain decoding.",
        "",
        f"  {tuned.argv}",
        "",
        f"Costs: {tuned.cost.note}.",
        *(f"Batch size {one.batch_size}: {_described(one, kind)}." for one in found.by_batch_size),
        *(f"Text like {one.category}: {_described(one, kind)}." for one in found.by_category),
        "",
        *(_AUTO if found.keep_auto else _FIXED),
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines) + _setting(found)


_AUTO = (
    "For every command that decodes. A build has a triple, which is the most that auto drafts.",
)
_FIXED = (
    "For trtla build --config, and trtla run --config with a Hugging Face folder or an engine",
    "that was built with this triple; with one built for more, use --request-lookahead.",
)


def _setting(found: Recommendation) -> str:
    """The lines of a preset that count."""
    triple = LookaheadConfig(*found.lookahead)
    note = f"window, ngram, verification set; max_draft_len is {triple.max_draft_len}."
    fixed = f"lookahead: {list(found.lookahead)}"
    if not found.keep_auto:
        return f"\n# {note}\n{fixed}\n"
    return "\nlookahead: auto\n" + (
        "" if _is_plain(found) else f"\n# The best fixed triple:\n# {fixed}\n"
    )


def _is_plain(one: Choice) -> bool:
    return one.lookahead == AUTOREGRESSIVE.as_tuple()


def speed(one: Choice, kind: str = "predicted") -> str:
    """A choice's speed-up in words."""
    parts = [] if one.predicted_speedup is None else [f"{one.predicted_speedup:.2f}x {kind}"]
    parts += [] if one.measured_speedup is None else [f"{one.measured_speedup:.2f}x measured"]
    return ", ".join(parts)


def _described(one: Choice, kind: str) -> str:
    auto = f"auto, {one.auto_speedup:.2f}x measured; " if one.auto_speedup else ""
    return f"{auto}{LookaheadConfig(*one.lookahead)}, {speed(one, kind)}"


def _by_roofline(tuned: Tune) -> bool:
    return tuned.cost.source == "roofline"


def _write(path: Path, text: str, flag: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}", f"give another path to {flag}"
        ) from None
