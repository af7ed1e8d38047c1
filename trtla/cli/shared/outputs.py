"""Checks of the files that a command writes, before it works for them."""

from __future__ import annotations

from pathlib import Path

from trtla.errors import UsageError
from trtla.files import written


def check_folder(path: Path, flag: str, *inputs: str | None) -> None:
    """Refuse a file to write that is a folder or an input, or whose folder is missing or read-only.

    Args:
        flag: names the file.
        inputs: paths that the command reads, if they are files.
    """
    if path.is_dir():
        raise UsageError(f"{flag} {path} is a folder", f"give a file in it: {path / 'out'}")
    if any(
        name and path.exists() and Path(name).exists() and path.samefile(name) for name in inputs
    ):
        raise UsageError(f"{flag} {path} is also the input", "give another file")
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} of {flag} does not exist", "make it first")
    if not path.exists():
        from tempfile import TemporaryFile

        with written(path, f"give another {flag}"), TemporaryFile(dir=path.parent):
            pass


def model_files(folder: str, *outputs: str) -> list[str]:
    """Return a model's path and its files, but those with the suffixes of outputs."""
    files = Path(folder).glob("*")
    return [folder, *(str(file) for file in files if file.suffix not in outputs)]


def check_new_file(path: Path, flag: str, *, force: bool) -> None:
    """Refuse a file whose folder is missing, or that exists and must not be replaced."""
    check_folder(path, flag)
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists already", f"add --force to replace it, or choose another {flag}"
        )
