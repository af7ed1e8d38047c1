"""The stand-in for TensorRT-LLM is frozen, so that tests on it depend on trtla alone."""

from __future__ import annotations

import hashlib

from tests.support.standin import FOLDER

DIGEST = "e64ced1a38251e8372d0bae295e3110537745617f3a688652cf524790ead71ba"
FROZEN = """\
The stand-in for TensorRT-LLM is frozen: tests/contract/standin is changed only on purpose.
If this change is a mistake, undo it. If it is meant, check it against the contract (TensorRT-LLM's
sources and the table of rules in CONTRIBUTING.md), run `scripts/test.sh --deep tests/contract`,
and set DIGEST in {file} to {digest!r} in the same commit."""


def digest() -> str:
    """Return the digest of the names and contents of all files of the stand-in."""
    total = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            own = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(FOLDER).as_posix()} {own}\n".encode())
    return total.hexdigest()


def test_the_stand_in_is_frozen() -> None:
    found = digest()
    assert found == DIGEST, FROZEN.format(file="tests/contract/test_standin.py", digest=found)
