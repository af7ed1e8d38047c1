"""Charts: what is written in them, equal bytes, safe text, files, and a missing matplotlib."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from trtla.charts import bars, check_path, save, svg_text
from trtla.errors import TrtlaError, UsageError

GROUPS = {"code": {"ar": 1.0, "lookahead 7,7,7": 2.31}, "chat": {"lookahead 7,7,7": 1.4}}


def bars_svg(groups: dict[str, dict[str, float]] = GROUPS, title: str = "Bars") -> str:
    return svg_text(bars(groups, value_label="speed-up", title=title, base=1.0))


def texts(svg: str) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


def test_bars_name_groups_series_and_values() -> None:
    assert {"code", "chat", "ar", "lookahead 7,7,7", "2.31", "1.40"} <= set(texts(bars_svg()))


def test_equal_figures_give_equal_bytes_and_drawing_again_changes_nothing() -> None:
    figure = bars(GROUPS, value_label="speed-up", title="Bars", base=1.0)
    assert svg_text(figure) == svg_text(figure) == bars_svg()


def test_an_svg_takes_the_colour_of_the_page_and_says_what_it_shows() -> None:
    svg = bars_svg()
    assert svg.startswith('<svg role="img" aria-label="Bars"')
    assert "currentColor" in svg
    assert "#1c2127" not in svg
    assert "<style" not in svg
    assert "http" not in svg


def test_two_charts_on_a_page_share_no_id() -> None:
    ids = [
        re.findall(r' id="([^"]+)"', svg) for svg in (bars_svg(title="One"), bars_svg(title="Two"))
    ]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])
    for svg in (bars_svg(title="One"), bars_svg(title="Two")):
        used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
        assert used == set(re.findall(r' id="([^"]+)"', svg))


def test_names_are_text_and_never_markup_or_formulas() -> None:
    name = '</text><script>alert("$x^2$ & more")</script>'
    svg = bars_svg({name: {name: 1.0, "other": 2.0}}, title=name)
    assert "<script" not in svg
    root = ElementTree.fromstring(svg.replace("xlink:href", "href"))
    assert name in [element.text for element in root.iter("text")]
    assert root.get("aria-label") == name


@pytest.mark.parametrize(("name", "begins"), [("a.svg", b"<?xml"), ("b.PNG", b"\x89PNG")])
def test_a_figure_is_saved_by_its_suffix(tmp_path: Path, name: str, begins: bytes) -> None:
    figure = bars(GROUPS, value_label="s", title="Bars")
    for _ in range(2):
        save(figure, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_other_suffixes_and_places_are_refused(tmp_path: Path) -> None:
    figure = bars(GROUPS, value_label="s", title="Bars")
    with pytest.raises(UsageError, match=r"a\.pdf"):
        check_path(tmp_path / "a.pdf")
    with pytest.raises(UsageError, match="cannot be written"):
        save(figure, tmp_path / "absent" / "a.svg")


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"needs? values"):
        bars({"code": {}}, value_label="", title="")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TrtlaError, match="matplotlib") as caught:
        bars(GROUPS, value_label="", title="")
    assert "trtla[report]" in (caught.value.hint or "")


def test_importing_charts_imports_no_matplotlib() -> None:
    code = "import sys, trtla.charts; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
