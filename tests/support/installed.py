"""Distributions of the files that git knows, and an environment with nothing of the tree in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
_HOOK = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"


def tracked(folder: str = ".") -> list[str]:
    """The files of a folder that git knows."""
    listed = subprocess.check_output(["git", "ls-files", "-z", folder], cwd=ROOT, text=True)
    return [name for name in listed.split("\0") if (ROOT / name).is_file()]


def export(to: Path) -> Path:
    """A copy of the tree, as it is now, without what git does not know."""
    for name in tracked():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name)
    return to


def build(kind: str, source: Path, to: Path) -> Path:
    """Build `wheel` or `sdist` as pip and build do, without a network."""
    to.mkdir()
    command = [sys.executable, "-c", _HOOK.format(kind), str(to)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (made,) = to.iterdir()
    return made


class Environment:
    """An environment whose dependencies are this one's, and whose trtla is a wheel's alone."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._bin, self._cwd = folder / "bin", folder / "elsewhere"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        shown = self.python("import sysconfig; print(sysconfig.get_path('purelib'))").stdout
        own = Path(shown.strip())
        paths = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
        # Paths in a .pth file are searched, the .pth files in them are not: no editable install
        (own / "dependencies.pth").write_text("\n".join(sorted(paths)))
        pip = [sys.executable, "-m", "pip", "--python", str(self._bin / "python")]
        quiet = ("--no-deps", "--no-index", "--disable-pip-version-check", "-q")
        subprocess.run([*pip, "install", *quiet, str(wheel)], check=True)
        self.site = own

    def python(self, code: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a program there."""
        return self._run("python", "-I", "-c", code, **more)

    def trtla(self, *args: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the installed command line."""
        return self._run("trtla", *args, **more)

    def start(self, *args: str | Path) -> subprocess.Popen[str]:
        """Start the installed command line, whose stderr can be read."""
        command = [str(self._bin / "trtla"), *map(str, args)]
        return subprocess.Popen(
            command, cwd=self._place(), env=_environment({}), stderr=subprocess.PIPE, text=True
        )

    def _run(
        self, program: str, *args: str | Path, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._bin / program), *map(str, args)],
            cwd=self._place(),
            env=_environment(environment),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    def _place(self) -> Path:
        self._cwd.mkdir(exist_ok=True)
        return self._cwd


def _environment(more: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, **more}
