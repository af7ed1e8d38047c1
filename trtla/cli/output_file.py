"""Files that commands make: refused before the work where they cannot be or are there already."""

from __future__ import annotations

from pathlib import Path

from trtla.errors import UsageError


def check_folder(path: Path, flag: str) -> None:
    """Refuse a file whose folder is missing; `flag` is what names it."""
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} of {flag} does not exist", "make it first")


def check_new_file(path: Path, flag: str, *, force: bool) -> None:
    """Refuse a file whose folder is missing, or that exists and shall not be replaced.

    Raises:
        UsageError: `flag` is what names it.
    """
    check_folder(path, flag)
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists already", f"add --force to replace it, or choose another {flag}"
        )
