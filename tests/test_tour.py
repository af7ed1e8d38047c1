"""Every file and name of docs/tour.md exists, and the names are where the page says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import trtla

PACKAGE = Path(trtla.__file__).parent
TOUR = PACKAGE.parent / "docs" / "tour.md"
FILES = re.findall(r"`((?:\w+/)+\w+\.py)`", TOUR.read_text())
NUMBERED = re.findall(r"^\| (\d+) \| `(\S+)`(.*)$", TOUR.read_text(), re.M)
NAMES = re.findall(r"`([A-Za-z_]\w+(?:\.\w+)?)`", TOUR.read_text())


def defined(path: Path) -> set[str]:
    """Functions, classes, and their members as `Class.member`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef):
                found |= {f"{node.name}.{member.name}", member.name}
            elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                found.add(f"{node.name}.{member.target.id}")
    return found


EVERYWHERE = {name for path in PACKAGE.rglob("*.py") for name in defined(path)}


@pytest.mark.parametrize("path", sorted(set(FILES)))
def test_its_files_exist(path):
    assert (PACKAGE / path).is_file()


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"append"}))
def test_its_names_exist(name):
    assert name in EVERYWHERE


def test_sixteen_files_in_order_each_define_what_is_told_of_them():
    assert [int(number) for number, _, _ in NUMBERED] == list(range(1, 17))
    for _, path, text in NUMBERED:
        first = re.search(r"`([\w.]+)`", text)
        assert first is not None, path
        assert first[1] in defined(PACKAGE / path), path
