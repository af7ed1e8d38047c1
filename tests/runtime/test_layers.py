"""The house rules that keep the layers apart."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import trtla

PACKAGE = Path(trtla.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def offenders(files: list[Path], *prefixes: str) -> list[str]:
    return [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in files
        for name in imports(path)
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
    ]


def test_leaves_know_no_torch():
    leaves = [PACKAGE / f"{name}.py" for name in ("lookahead", "errors", "config")]
    assert offenders(leaves, "torch", "transformers", "trtla.build", "trtla.runtime") == []


def test_build_and_runtime_meet_in_the_engine_only():
    build = [p for p in FILES if p.parent.name == "build"]
    runtime = [p for p in FILES if "runtime" in p.parts]
    assert offenders(build, "trtla.runtime") == []
    # The parts of `trtla.build.engine` that open engines: the whole of it loads the builders too.
    parts = ("engine", "engine_folder", "in_memory", "settings", "folder_kind")
    parts += ("encoder_decoder", "t5_config", "hugging_face")
    allowed = {f"trtla.build.{part}" for part in parts}
    used = {name for path in runtime for name in imports(path) if name.startswith("trtla.build")}
    assert used <= allowed


def test_tensorrt_llm_is_imported_by_one_file_only():
    assert offenders(FILES, "tensorrt_llm", "tensorrt") == []
    dynamic = [
        p.name
        for p in FILES
        if "import_module(" in (text := p.read_text()) and "tensorrt_llm" in text
    ]
    assert dynamic == ["trtllm_library.py"]


def test_commands_never_name_a_concrete_executor():
    commands = [p for p in FILES if "runtime" not in p.parts and "build" not in p.parts]
    assert offenders(commands, "trtla.runtime.loop.executor", "trtla.trtllm.executor") == []


def test_no_file_is_named_after_nothing():
    vague = {"utils", "util", "common", "helpers", "misc", "core"}
    assert [p.name for p in FILES if p.stem in vague] == []


def test_importing_trtla_loads_no_torch():
    code = "import sys, trtla, trtla.settings.lookahead; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
