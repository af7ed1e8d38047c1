"""The page: what it concludes, that it escapes and loads nothing, and how Chromium shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support import documents
from tests.support.documents import put
from trtla.extras.bench.report.figures import comparisons, measured
from trtla.extras.bench.report.page import page, report
from trtla.extras.bench.report.reading import read_all

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
_VOID = {"meta", "br", "hr", "img", "link", "input"}


def made(folder: Path, found: dict[str, dict[str, Any]], title: str = "Report") -> str:
    return report([put(folder, name, document) for name, document in found.items()], title)


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


class Reader(HTMLParser):
    """Collects elements, and fails where they are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open, tag
            assert self.open.pop() == tag


def test_the_headline_is_of_the_row_over_all_tasks(tmp_path: Path) -> None:
    html = made(tmp_path, {"bench.json": documents.bench()})
    assert "<h1>Lookahead 7,7,7 decodes 2.00x as fast as plain decoding.</h1>" in html
    said = text_of(html)
    assert "1.00 to 4.00 over 2 tasks" in said
    assert "llama, cpu, float32, 2 threads, batch 1, greedy" in said
    assert "measured: +12 MB" in said


def test_bench_is_shown_with_what_the_executor_says_of_itself(tmp_path: Path) -> None:
    said = "cpu, int8 on Q4_1 weights, compiled"
    found = documents.bench()
    rows = [row | {"executor": said} for row in found["rows"]]
    text = text_of(made(tmp_path, {"bench.json": {**found, "rows": rows}}))
    assert f"llama, {said}, 2 threads, batch 1, greedy" in text
    assert "float32" not in text


def test_the_page_keeps_auto_where_tune_did(tmp_path: Path) -> None:
    found = documents.tune()
    found["rows"] = found["rows"][:1]
    found["recommendation"] |= {"keep_auto": True, "auto_speedup": 3.1}
    said = text_of(made(tmp_path, {"tune.json": found}))
    assert "tune recommends auto, the default, with 3.10x (measured)." in said
    assert "auto , the default: measured 3.10x. Best fixed triple:" in " ".join(said.split())


def test_what_tune_says_against_its_figures_is_the_headline(tmp_path: Path) -> None:
    found = {**documents.tune(), "doubts": ["2 prompts and 64 tokens say little", "turns differ"]}
    said = text_of(made(tmp_path, {"tune.json": found}))
    assert "Not enough to tell what is faster: 2 prompts and 64 tokens say little." in said
    assert "tune said of document 1: 2 prompts and 64 tokens say little; turns differ." in said


def test_what_tune_tells_over_all_prompts_stands_before_a_mean(tmp_path: Path) -> None:
    triple, found = "lookahead 4,3,3", documents.tune()
    found["rows"] = [
        documents.bench_row(triple, category, speedup, batch_size=batch)
        for category, speedup, batch in (
            ("code", 2.9, 1),
            ("all", 1.5, 1),
            ("chat", 1.1, 1),
            ("all", 0.9, 8),
        )
    ]
    said = text_of(made(tmp_path, {"tune.json": found}))
    assert "Lookahead 4,3,3 decodes 1.50x as fast" in said
    assert "1.10 to 2.90 over 2 tasks" in said
    assert "0.90x" in said


def test_a_method_that_slows_down_is_not_praised(tmp_path: Path) -> None:
    rows = [documents.bench_row("ar", "code", 1.0), documents.bench_row("ngram", "code", 0.8)]
    html = made(tmp_path, {"bench.json": documents.bench(rows)})
    assert "Nothing is faster than plain decoding here; ngram comes nearest, 0.80x." in html


def test_greedy_small_batches_are_compared_and_others_listed(tmp_path: Path) -> None:
    rows = [
        documents.bench_row("ngram", "code", 9.0, temperature=0.5),
        documents.bench_row("ngram", "code", 8.0, batch_size=8),
        documents.bench_row("ngram", "code", 1.5),
    ]
    path = put(tmp_path, "bench.json", documents.bench(rows))
    found = comparisons([one for source in read_all([path]) for one in measured(source)])
    assert [row.speedup for row in found[0].rows] == [pytest.approx(1.5)]
    assert "8.00x" in report([path], "Report")


def test_all_kinds_make_one_page(tmp_path: Path) -> None:
    html = made(tmp_path, documents.everything())
    said = text_of(html)
    for part in (
        "Speed-up by task", "Speed-up by batch size",
        "W 4, N 3, G 3 for batch 1: measured 2.90x over all", "predicted 1.50x",
        "prompt-lookup", "1.70x", "ROUGE-L",
        "a draft model with the same vocabulary", "2 of 2", "trtla bench --engine-dir engine",
        "AMD EPYC", "16.0 GiB", "Documents 2, 4 and 5 do not say which machine",
    ):  # fmt: skip
        assert part in said, part
    assert len(html) < 1_000_000


@pytest.mark.parametrize("name", list(documents.everything()))
def test_each_kind_makes_a_page_alone(tmp_path: Path, name: str) -> None:
    html = made(tmp_path, {name: documents.everything()[name]})
    Reader(html)
    assert "Nothing in these documents" not in html


def test_bars_are_as_long_as_their_values_and_keep_their_colour(tmp_path: Path) -> None:
    ratios = {"code": {"ar": 1.0, "ngram": 2.0, "egag": 0.5}, "chat": {"ar": 1.0, "ngram": 1.0}}
    rows = [documents.bench_row(a, task, r) for task, of in ratios.items() for a, r in of.items()]
    html = made(tmp_path, {"bench.json": documents.bench(rows)})
    chart = html[html.index('class="bars"') :].partition("</table>")[0]
    bars = re.findall(
        r'width: ([\d.]+)%; background: (#\w+)"></div></div></th>\n.*>([\d.]+)<', chart
    )
    assert [(width, value) for width, _, value in bars] == [
        ("100.0", "2.00"), ("25.0", "0.50"), ("50.0", "1.00")
    ]  # fmt: skip
    assert bars[0][1] == bars[2][1] != bars[1][1]
    assert chart.count("--plain: 50.0%") == len(bars)
    assert [chart.count(f">{task}<") for task in ratios] == [1, 1]


def test_equal_documents_give_equal_pages(tmp_path: Path) -> None:
    found = documents.everything()
    assert made(tmp_path, found) == made(tmp_path, found)


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    html = made(tmp_path, documents.everything())
    assert "http://" not in html
    assert "https://" not in html
    assert "@import" not in html
    reader = Reader(html)
    assert not {tag for tag, _ in reader.seen} & {"script", "link", "iframe", "object", "embed"}
    loads = [attrs[key] for _, attrs in reader.seen for key in ("src", "href", "xlink:href")
             if key in attrs]  # fmt: skip
    assert all((link or "").startswith("#") for link in loads)


def test_everything_from_documents_is_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>'
    rows = [
        documents.bench_row("ar", evil, 1.0, dtype=evil),
        documents.bench_row(f"{evil}a", evil, 1.2, setting=evil, dtype=evil, equal_texts=1),
        documents.bench_row(f"{evil}a", "other", 1.2, setting=evil, dtype=evil, distinct_4grams=0),
    ]
    found = documents.bench(rows)
    found["settings"]["model"] = evil
    found["environment"] = {"command": evil, evil: evil, "gpus": [evil]}
    tune = documents.tune()
    tune["settings"] = {"model": evil, evil: evil}
    tune["cost"]["note"] = tune["argv"] = evil
    for row in tune["rows"]:
        row["category"] = row["executor"] = evil
    html = made(tmp_path, {"b<script>.json": found, "tune.json": tune}, title=evil)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    Reader(html)


def test_looping_texts_and_differences_are_told(tmp_path: Path) -> None:
    rows = [
        documents.bench_row("ar", "code", 1.0, rounds=1),
        documents.bench_row("ngram", "code", 2.0, distinct_4grams=0.2, equal_texts=2,
                            first_divergence=9, rounds=1),
    ]  # fmt: skip
    said = text_of(made(tmp_path, {"bench.json": documents.bench(rows)}))
    assert "under half of the 4-grams are distinct in code (lowest share 0.20)" in said
    assert "Some texts of ngram differ from plain decoding" in said


def test_documents_that_rest_on_little_are_named_above_everything(tmp_path: Path) -> None:
    rows = [
        documents.bench_row(arm, "code", 1.5, rounds=1, texts=1, equal_texts=1, output_tokens=32)
        for arm in ("ar", "lookahead 7,7,7")
    ]
    html = made(tmp_path, {"bench.json": documents.bench(rows)})
    warned = "Document 1 rests on 1 prompt and 1 round and 32 tokens only"
    assert warned in text_of(html[: html.index("<main>")])
    enough = [{**row, "rounds": 5, "texts": 3, "output_tokens": 384} for row in rows]
    assert "rests on" not in made(tmp_path, {"bench.json": documents.bench(enough)})


def test_long_cells_are_not_repeated(tmp_path: Path) -> None:
    arms = ("ar", "lookahead 7,7,7", "lookahead 3,4,2", "lookahead 2,2,2")
    rows = [documents.bench_row(arm, "code", 1.5) for arm in arms]
    said = text_of(made(tmp_path, {"bench.json": documents.bench(rows)}))
    assert said.count("No draft model at hand") == 1
    assert said.count("an n-gram pool") == 1
    assert said.count("as above") == 4


def test_a_difference_in_a_run_names_its_place_and_margin(tmp_path: Path) -> None:
    said = text_of(made(tmp_path, {"run.json": documents.run(lossless=False)}))
    assert "0 of 2 17 0.002" in said


def test_charts_and_tables_can_be_told_without_seeing(tmp_path: Path) -> None:
    html = made(tmp_path, documents.everything())
    seen = Reader(html).seen
    tables = sum(tag == "table" for tag, _ in seen)
    assert tables == sum(tag == "caption" for tag, _ in seen)
    assert [tag for tag, _ in seen].count("h1") == 1
    assert all(attrs.get("scope") for tag, attrs in seen if tag == "th")
    ids = [attrs["id"] for _, attrs in seen if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_a_page_of_no_comparison_says_so() -> None:
    assert "Nothing in these documents compares" in page([], "Report")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_in_chromium_a_phone_does_not_scroll_sideways(tmp_path: Path) -> None:
    """A copy in a frame of a phone's width, with a script that writes down what it measures."""
    html = made(tmp_path, documents.everything())
    html = html.replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';")
    probe = (
        "<script>onload = () => parent.postMessage([document.documentElement.scrollWidth, "
        "innerWidth, document.querySelectorAll('.bars').length], '*')</script></body>"
    )
    (tmp_path / "page.html").write_text(html.replace("</body>", probe), encoding="utf-8")
    (tmp_path / "frame.html").write_text(
        "<!DOCTYPE html><p id=found></p><script>onmessage = e => "
        "{ found.textContent = 'found ' + e.data.join(' ') }</script>"
        "<iframe src=page.html style='width:390px;height:800px;border:0'></iframe>",
        encoding="utf-8",
    )
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
            "--virtual-time-budget=5000", "--dump-dom", f"file://{tmp_path / 'frame.html'}",
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r"found (\d+) (\d+) (\d+)</p>", done.stdout)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    scroll_width, width, charts = map(int, found.groups())
    assert width == 390
    assert scroll_width <= width
    assert charts == html.count('class="bars"')
    assert "CONSOLE" not in done.stderr, done.stderr


def test_the_page_needs_no_matplotlib() -> None:
    code = (
        "import sys; from trtla.extras.bench.report.page import page; page([], 'Report'); "
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
