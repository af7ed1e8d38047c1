"""The layers of the package: imports go downwards, and no files import each other in a circle.

Imports inside functions and under TYPE_CHECKING count as well: a layer is what a reader must know.
"""

from __future__ import annotations

import ast
import functools
import re
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
    "other_tools",
    "errors version interrupts leftovers",
    "files console machine",
    "settings",
    "formats",
    "runtime",
    "trtllm",
    "build llm",
    "__init__ data",
    "results",
    "measuring api",
    "serve",
    "cli",
    "extras __main__",
)
RUNTIME = (
    "stats draft blocks costs arrays device grammar_lexer threads",
    "grammar",
    "request",
    "limits sequence",
    "executor lengths sampling ranks",
    "models",
    "tree",
    "drafters",
    "auto",
    "loop plain_loop",
)
MODELS = (
    "kv_cache mask rotary rounding tensors",
    "attention forward tensor_cache",
    "batch layers",
    "cpu cuda mlp",
    "tensor_model",
    "llama t5",
    "cuda_check",
    "load",
    "heads",
)
CLI = ("shared", "commands", "run serve engines", "app")
WITH_TORCH = (
    "build/activations.py",
    "extras/hosts/attention.py",
    "extras/hosts/decoding.py",
    "extras/hosts/transformers.py",
    "formats/torch_tensors.py",
    "measuring/hugging_face.py",
    "runtime/models/attention.py",
    "runtime/models/batch.py",
    "runtime/models/cuda",
    "runtime/models/cuda_check.py",
    "runtime/models/mlp.py",
    "runtime/models/heads/tensor_head.py",
    "runtime/models/heads/tensor_medusa.py",
    "runtime/models/layers.py",
    "runtime/models/llama.py",
    "runtime/models/t5.py",
    "runtime/models/tensor_cache.py",
    "runtime/models/tensor_model.py",
    "runtime/ranks/launch.py",
    "runtime/ranks/world.py",
    "runtime/sampling/device.py",
)
"""Files and folders that import torch or transformers, or what does; no others do."""


def with_torch() -> list[str]:
    """Those that are there: each extra may be missing."""
    parts = [(one, Path(one).parts) for one in WITH_TORCH]
    return [
        one for one, path in parts if path[0] != "extras" or PACKAGE.joinpath(*path[:2]).is_dir()
    ]


@functools.cache
def module_file(name: str) -> Path | None:
    """The file of a module of this package; None where the name is none."""
    path = PACKAGE.joinpath(*name.split(".")[1:])
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


@functools.cache
def imports(path: Path, inside: bool = True) -> tuple[str, ...]:
    """Every module that a file imports; `inside`: also in functions and under TYPE_CHECKING."""
    return tuple(_imports(path, inside))


def _imports(path: Path, inside: bool) -> Iterator[str]:
    for node in statements(parsed(path)) if inside else run_at_import(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            parts = [n for n in names if n.startswith("trtla.") and module_file(n)]
            yield from parts
            if len(parts) < len(names):
                yield node.module


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All of them, at any depth; in an expression there is none."""
    for child in within(node):
        yield child
        yield from statements(child)


def within(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a statement, and what they stand in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield child


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: all but functions and what is for type checkers."""
    for child in within(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from run_at_import(child)


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
    return sorted(f"{a} imports {b}" for a, b in arrows if a != b and floor[b] >= floor[a])


def inner(folder: str) -> list[Path]:
    """The files of a folder, but for the marks of packages."""
    own = PACKAGE / folder
    return [path for path in FILES if own in path.parents and path.name != "__init__.py"]


FOLDERS = {"runtime": RUNTIME, "runtime/models": MODELS, "cli": CLI}


def test_every_part_of_the_package_has_a_layer():
    assert {part(path) for path in FILES} == set(floors(LAYERS))
    for folder in ("runtime", "runtime/models"):
        below = len(Path(folder).parts)
        assert {part(path, below) for path in inner(folder)} == set(floors(FOLDERS[folder]))


def test_nobody_imports_upwards():
    arrows = {(part(a), part(b)) for a, many in graph().items() for b in many}
    assert upward(LAYERS, arrows) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_nobody_imports_upwards_inside(folder: str):
    files, below, known = inner(folder), len(Path(folder).parts), graph()
    arrows = {(part(a, below), part(b, below)) for a in files for b in known[a] if b in files}
    assert upward(FOLDERS[folder], arrows) == []


def test_no_circle_of_files():
    try:
        list(TopologicalSorter(graph()).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(str(p.relative_to(PACKAGE)) for p in error.args[1]))


def named(pattern: str) -> set[Path]:
    """The files of a pattern or a folder; there must be some."""
    found = {file for path in PACKAGE.glob(pattern) for file in (path, *path.rglob("*.py"))}
    files = {file for file in found if file.is_file()}
    assert files, f"{pattern} is nowhere"
    return files


def test_few_files_import_torch_when_they_are_imported():
    """The light installation has neither torch nor transformers, and imports all the others."""
    known, allowed = graph(inside=False), set().union(*map(named, with_torch()))
    users = {path for path in FILES if {"torch", "transformers"} & set(roots(path))}
    assert {path for path in FILES if users & _reached(path, known)} <= allowed
    assert all(users & named(one) for one in with_torch())


def roots(path: Path) -> list[str]:
    """The packages that are imported when a file is."""
    return [name.split(".")[0] for name in imports(path, inside=False)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch", ["torch"]),
        ("try:\n    import torch\nexcept ImportError:\n    pass", ["torch"]),
        ("try:\n    pass\nexcept OSError:\n    from torch import nn", ["torch"]),
        ("if True:\n    import torch\nelse:\n    import json", ["torch", "json"]),
        ("with a:\n    import torch", ["torch"]),
        ("class A:\n    import torch", ["torch"]),
        ("def load():\n    import torch", []),
        ("if TYPE_CHECKING:\n    import torch", []),
    ],
)
def test_what_is_imported_with_a_file_is_seen_wherever_it_stands(tmp_path, text, expected):
    file = tmp_path / "one.py"
    file.write_text(text)
    assert roots(file) == expected


def test_a_pattern_without_files_is_noticed():
    with pytest.raises(AssertionError, match=r"runtime/no_such\.py is nowhere"):
        named("runtime/no_such.py")


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
    allowed = {"llm", "build", "cli", "extras"}
    users = {part(a) for a, many in graph().items() for b in many if part(b) == "trtllm"}
    assert users - {"trtllm"} <= allowed


def test_no_file_is_named_after_nothing():
    vague = {"utils", "util", "common", "helpers", "misc", "core"}
    assert [p.name for p in FILES if p.stem in vague] == []


def test_importing_trtla_loads_no_torch():
    code = "import sys, trtla, trtla.settings.lookahead; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tests_share_through_support_and_conftest_only() -> None:
    """A test file can be moved, split or deleted without a look at the others.

    Tests of an extra may have a support file of their own.
    """
    tests = Path(__file__).parent
    for file in tests.rglob("*.py"):
        shared = r"tests\.support\b|.*\.conftest$"
        if "extras" in file.parts:
            shared += r"|tests\.extras\.\w+\.support$"
        names = re.findall(r"^\s*(?:from|import) (tests[\w.]*)", file.read_text(), re.MULTILINE)
        wrong = [n for n in names if not re.match(shared, n)]
        assert not wrong, f"{file.relative_to(tests)} imports {wrong}: move it to tests/support"
