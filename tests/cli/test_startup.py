"""What `trtla run` loads: no torch, no transformers, few packages.

A busy machine changes seconds, not modules.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.command import ROOT, known, refused, trtla

_LIGHT = {"trtla", "click", "pydantic", "pydantic_core", "annotated_types", "typing_inspection"}
_LIGHT |= {"typing_extensions", "tokenizers", "numpy", "ml_dtypes"}
_BUILDERS = (
    "trtla.build.engine",
    "trtla.build.convert",
    "trtla.trtllm.build",
    "trtla.measuring.turns",
)
_LOADED = """
import gc, json, sys
before = set(sys.modules)
from trtla.cli import main
try:
    main(sys.argv[2:])
except SystemExit as end:
    assert end.code == 0, end.code
frozen, left = gc.get_freeze_count(), len(gc.get_objects())
with open(sys.argv[1], "w") as file:
    json.dump([sorted(set(sys.modules) - before), frozen, left], file)
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a run leaves in its process."""

    modules: list[str]
    """Those that were not there when Python had started."""
    frozen: int
    """Objects that the garbage collector passes by at exit."""
    left: int
    """Objects that it looks through."""

    @property
    def packages(self) -> set[str]:
        """The packages that do not come with Python."""
        names = {name.partition(".")[0] for name in self.modules} - sys.stdlib_module_names
        return {name for name in names if not name.startswith("_")}

    def within(self, parents: tuple[str, ...]) -> list[str]:
        """The modules that are one of these or below it."""
        return [m for m in self.modules if any(f"{m}.".startswith(f"{p}.") for p in parents)]


def loaded(folder: Path, found: Path) -> Loaded:
    """Run a model in a process of its own, which writes to a file what it has loaded."""
    run = ["run", "--engine-dir", str(folder), "--input-text", "ab", "--max-output-len", "1"]
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, str(found), *run], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return Loaded(*json.loads(found.read_text()))


@pytest.fixture(scope="module")
def run_of_an_engine(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return loaded(engine, tmp_path_factory.mktemp("loaded") / "found.json")


def test_a_run_loads_few_packages(run_of_an_engine: Loaded) -> None:
    assert {"trtla", "click", "tokenizers"} <= run_of_an_engine.packages <= _LIGHT


def test_importing_llm_loads_no_other_package() -> None:
    """What opens a model is imported when one is opened."""
    script = "import sys; before = set(sys.modules); from trtla import LLM\n"
    script += "print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert Loaded(done.stdout.split(), 0, 0).packages == {"trtla"}, done.stderr


def test_a_run_loads_nothing_that_builds_engines(run_of_an_engine: Loaded) -> None:
    assert not run_of_an_engine.within(_BUILDERS)


def test_a_hugging_face_folder_loads_no_more_packages(model: Path, tmp_path: Path) -> None:
    run = loaded(model, tmp_path / "found.json")
    assert run.packages <= _LIGHT
    assert not run.within(_BUILDERS)


def test_the_collector_passes_by_what_is_loaded(run_of_an_engine: Loaded) -> None:
    assert run_of_an_engine.frozen > 10 * run_of_an_engine.left


def test_a_large_model_is_named_before_it_is_read(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("-m", engine, "-n", "2")
    small = trtla("run", *asked, "-p", "a")
    monkeypatch.setattr("trtla.cli.shared.model.LARGE", 1000)
    for line in known(("run", *asked, "-p", "a"), ("chat", *asked)):
        ran = trtla(*line, stdin="a")
        assert re.search(rf"^note: loading {re.escape(str(engine))}, [0-9.]+ MB\n", ran.err)
    assert (small.code, "loading" in small.err) == (0, False)


def test_a_broken_tokenizer_is_refused_with_its_reason(engine: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((engine / name).read_bytes())
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "added_tokens": []}')
    ran = trtla("run", "--engine-dir", engine, "--tokenizer-dir", tmp_path, "--input-text", "a")
    refused(ran, 2, "cannot be loaded", "--tokenizer-dir")


@pytest.mark.parametrize("package", ["pydantic", "click"])
def test_a_missing_package_is_named(package):
    line = ["run", "-m", ".", "-p", "a"]
    start = f"import sys; sys.modules['{package}'] = None; from trtla.cli import main; main({line})"
    command = [sys.executable, "-c", start]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    said, hint = done.stderr.splitlines()
    assert said == f"error: trtla needs {package}, which is not installed"
    assert hint.startswith(f"hint: pip install {package}")
