"""Pictures as files: equal bytes, whole or not at all, and a missing matplotlib."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trtla.charts import check_path, save, theme
from trtla.errors import TrtlaError, UsageError


@pytest.mark.parametrize(("name", "begins"), [("a.svg", b"<?xml"), ("b.PNG", b"\x89PNG")])
def test_a_figure_is_saved_by_its_suffix(tmp_path: Path, name: str, begins: bytes) -> None:
    from matplotlib.figure import Figure

    written = []
    for _ in range(2):
        save(Figure(figsize=(1, 1)), tmp_path / name)
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    assert written[0].startswith(begins)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(UsageError, match="cannot be written"):
        save(Figure(figsize=(1, 1)), tmp_path / "absent" / name)


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.pdf"):
        check_path(tmp_path / "a.pdf")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TrtlaError, match="matplotlib") as caught:
        theme()
    assert "trtla[report]" in (caught.value.hint or "")


def test_the_import_needs_no_matplotlib() -> None:
    code = "import sys; import trtla.charts; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
