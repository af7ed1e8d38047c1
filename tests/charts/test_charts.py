"""Charts: what is written in them, equal bytes, safe text, files, and a missing matplotlib."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.text import Text

from trtla.charts import bars, check_path, cost_curve, heat_map, save, svg_text
from trtla.errors import TrtlaError, UsageError

GRID = {(1, 2): 1.25, (3, 2): 1.5, (3, 4): 2.0}
GROUPS = {"code": {"ar": 1.0, "lookahead 7,7,7": 2.31}, "chat": {"lookahead 7,7,7": 1.4}}
ROWS = [(1, [(1, 0.001), (16, 0.0011), (64, 0.004)]), (4, [(4, 0.002), (64, 0.005)])]


def grid_svg(title: str = "Grid") -> str:
    return svg_text(
        heat_map(GRID, x_label="W", y_label="N", value_label="speed-up", title=title, marked=(3, 4))
    )


def bars_svg(groups: dict[str, dict[str, float]] = GROUPS, title: str = "Bars") -> str:
    return svg_text(bars(groups, value_label="speed-up", title=title, base=1.0))


def texts(svg: str) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


def test_a_heat_map_writes_every_value_and_leaves_gaps_empty() -> None:
    written = texts(grid_svg())
    assert {"1.25", "1.50", "2.00", "W", "N", "speed-up", "Grid"} <= set(written)
    digits = [text for text in written if re.fullmatch(r"\d\.\d\d", text)]
    assert sorted(digits) == ["1.25", "1.25", "1.50", "2.00", "2.00"]  # the bar has both ends


@pytest.mark.parametrize(
    "values",
    [
        {(1, 2): 1.0},
        {(1, 2): 0.993, (3, 2): 1.017},
        {(w, n): 1.0 + w / 100 + n / 1000 for w in range(1, 9) for n in range(2, 9)},
    ],
)
def test_no_text_of_a_heat_map_overlaps_another(values: dict[tuple[int, int], float]) -> None:
    figure = heat_map(
        values, x_label="window W", y_label="n-gram N", marked=(1, 2),
        value_label="predicted speed-up at the best G",
        title="Speed-up over plain decoding, batch size 16",
    )  # fmt: skip
    texts = [one for one in figure.findobj(Text) if one.get_text() and one.get_visible()]
    assert max(len(one.get_text()) for one in texts if one.get_text()[0].isdigit()) == 4
    boxes = [one.get_window_extent() for one in texts]
    for (i, one), (j, other) in combinations(enumerate(boxes), 2):
        assert not one.overlaps(other), (texts[i].get_text(), texts[j].get_text())
    assert all(figure.bbox.width >= box.x1 and box.x0 >= 0 for box in boxes)


def test_the_marked_pair_alone_has_a_frame() -> None:
    plain = svg_text(heat_map(GRID, x_label="W", y_label="N", value_label="s", title="Grid"))
    assert grid_svg().count("#d55e00") == 1
    assert "#d55e00" not in plain


def test_bars_name_groups_series_and_values() -> None:
    assert {"code", "chat", "ar", "lookahead 7,7,7", "2.31", "1.40"} <= set(texts(bars_svg()))


def test_a_cost_curve_tells_its_knee_and_its_rows() -> None:
    svg = svg_text(cost_curve(ROWS, knee=16, title="Cost"))
    assert {"knee: 16 tokens", "1 sequence", "4 sequences", "milliseconds"} <= set(texts(svg))
    assert "knee" not in svg_text(cost_curve(ROWS, knee=None, title="Cost"))


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
    ids = [re.findall(r' id="([^"]+)"', svg) for svg in (grid_svg("One"), grid_svg("Two"))]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])
    for svg in (grid_svg("One"), grid_svg("Two")):
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
    figure = cost_curve(ROWS, knee=16, title="Cost")
    for _ in range(2):
        save(figure, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_other_suffixes_and_places_are_refused(tmp_path: Path) -> None:
    figure = cost_curve(ROWS, knee=None, title="Cost")
    with pytest.raises(UsageError, match=r"a\.pdf"):
        check_path(tmp_path / "a.pdf")
    with pytest.raises(UsageError, match="cannot be written"):
        save(figure, tmp_path / "absent" / "a.svg")


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"needs? values"):
        bars({"code": {}}, value_label="", title="")
    with pytest.raises(ValueError, match=r"needs? values"):
        heat_map({}, x_label="", y_label="", value_label="", title="")
    with pytest.raises(ValueError, match="needs rows"):
        cost_curve([], knee=None, title="")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(TrtlaError, match="matplotlib") as caught:
        bars(GROUPS, value_label="", title="")
    assert "trtla[report]" in (caught.value.hint or "")


def test_importing_charts_imports_no_matplotlib() -> None:
    code = "import sys, trtla.charts; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
