"""The layers of the package: imports go downwards, and no files import each other in a circle.

Imports inside functions and under TYPE_CHECKING count as well: a layer is what a reader must know.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import trtla

PACKAGE = Path(trtla.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# From the bottom to the top. A file imports from layers below its own, and from its own package.
LAYERS = (
    "errors version interrupts",
    "files console machine",
    "settings",
    "formats charts",
    "runtime",
    "trtllm",
    "build llm",
    "__init__ data doctor",
    "results",
    "bench explain api replicas",
    "tune report chat serve batch",
    "cli",
    "__main__",
)
RUNTIME = (
    "stats draft blocks costs written",
    "request",
    "limits sequence",
    "executor sampling ranks",
    "models",
    "tree",
    "drafters",
    "auto",
    "loop",
)
CLI = ("shared", "run bench serve build", "app", "failure")
SIDEWAYS = {("report", "bench"), ("tune", "bench"), ("chat", "explain")}
"""Within a layer: who may import whom."""
TORCH_FREE = (
    "settings/*.py",
    "formats/config.py",
    "formats/*_config.py",
    "formats/folder.py",
    "formats/engine.py",
    "formats/engine_limits.py",
    "runtime/*.py",
    "runtime/auto/[!p]*.py",
    "runtime/drafters/[!df]*.py",
)


def module_file(name: str) -> Path | None:
    """The file of a module of this package; None where the name is none."""
    path = PACKAGE.joinpath(*name.split(".")[1:])
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


def imports(path: Path, inside: bool = True) -> Iterator[str]:
    """Every module that a file imports; `inside`: also in functions and under TYPE_CHECKING."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if inside else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            parts = [n for n in names if n.startswith("trtla.") and module_file(n)]
            yield from parts
            if len(parts) < len(names):
                yield node.module


def graph(inside: bool = True) -> dict[Path, set[Path]]:
    """File -> files of the package that it imports."""
    found = {}
    for path in FILES:
        names = [n for n in imports(path, inside) if n.split(".")[0] == "trtla"]
        found[path] = {file for name in names if (file := module_file(name))} - {path}
    return found


def part(path: Path, below: int = 0) -> str:
    """The package, or the file, that a path belongs to, counted from a folder of this depth."""
    return path.relative_to(PACKAGE).parts[below].removesuffix(".py")


def floors(layers: tuple[str, ...]) -> dict[str, int]:
    return {name: floor for floor, names in enumerate(layers) for name in names.split()}


def upward(layers: tuple[str, ...], arrows: set[tuple[str, str]]) -> list[str]:
    """Arrows between parts that do not lead to a lower floor."""
    floor = floors(layers)
    lost = {name for arrow in arrows for name in arrow} - set(floor)
    assert not lost, f"not in any layer: {sorted(lost)}"
    return sorted(
        f"{a} imports {b}"
        for a, b in arrows
        if a != b and floor[b] >= floor[a] and (a, b) not in SIDEWAYS
    )


def test_every_part_of_the_package_has_a_layer():
    runtime = PACKAGE / "runtime"
    assert {part(path) for path in FILES} == set(floors(LAYERS))
    inner = {part(p, 1) for p in FILES if runtime in p.parents and p.name != "__init__.py"}
    assert inner == set(floors(RUNTIME))


def test_nobody_imports_upwards():
    arrows = {(part(a), part(b)) for a, many in graph().items() for b in many}
    assert upward(LAYERS, arrows) == []


@pytest.mark.parametrize(("folder", "layers"), [("runtime", RUNTIME), ("cli", CLI)])
def test_nobody_imports_upwards_inside(folder: str, layers: tuple[str, ...]):
    inner = [p for p in FILES if PACKAGE / folder in p.parents]
    known = graph()
    arrows = {(part(a, 1), part(b, 1)) for a in inner for b in known[a] if b in inner}
    assert upward(layers, {(a, b) for a, b in arrows if "__init__" not in (a, b)}) == []


def test_no_circle_of_files():
    try:
        list(TopologicalSorter(graph()).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(str(p.relative_to(PACKAGE)) for p in error.args[1]))


def test_values_know_no_torch():
    files = {path for pattern in TORCH_FREE for path in PACKAGE.glob(pattern)}
    known = graph(inside=False)
    for path in files:
        for reached in _reached(path, known):
            direct = {name.split(".")[0] for name in imports(reached, inside=False)}
            assert not direct & {"torch", "transformers"}, f"{path} -> {reached}"


def _reached(start: Path, known: dict[Path, set[Path]]) -> set[Path]:
    seen, left = {start}, [start]
    while left:
        new = known[left.pop()] - seen
        seen |= new
        left += new
    return seen


def test_tensorrt_llm_is_imported_by_one_file_only():
    direct = [
        p for p in FILES if {"tensorrt_llm", "tensorrt"} & {n.split(".")[0] for n in imports(p)}
    ]
    assert direct == []
    dynamic = [
        str(p.relative_to(PACKAGE))
        for p in FILES
        if "import_module(" in (text := p.read_text()) and "tensorrt_llm" in text
    ]
    assert dynamic == ["trtllm/library.py"]


def test_who_knows_tensorrt_llm_stands_in_one_package():
    """Above it, only what opens models, builds engines and shows the machine asks for it."""
    allowed = {"llm", "build", "doctor", "cli", "tune"}
    users = {part(a) for a, many in graph().items() for b in many if part(b) == "trtllm"}
    assert users - {"trtllm"} <= allowed


def test_no_file_is_named_after_nothing():
    vague = {"utils", "util", "common", "helpers", "misc", "core"}
    assert [p.name for p in FILES if p.stem in vague] == []


def test_importing_trtla_loads_no_torch():
    code = "import sys, trtla, trtla.settings.lookahead; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
