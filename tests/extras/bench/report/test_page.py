"""The page: what it concludes, that it escapes and loads nothing, and how Chromium shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support import documents
from tests.support.documents import put
from trtla.extras.bench.report.page import report

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

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open, tag
            assert self.open.pop() == tag


def test_the_headline_is_of_the_fastest_arm_over_all_prompts(tmp_path: Path) -> None:
    html = made(tmp_path, {"bench.json": documents.bench()})
    assert "<h1>lookahead 7,7,7 decodes 2.00x as fast as plain decoding.</h1>" in html
    said = text_of(html)
    basis = "5 rounds, 6 texts, 6 equal to plain decoding"
    assert f"llama, cpu, float32, 2 threads, batch 1, temperature 0; {basis}" in said


def test_a_method_that_slows_down_is_not_praised(tmp_path: Path) -> None:
    rows = [documents.bench_row("ar", "code", 1.0), documents.bench_row("ngram", "code", 0.8)]
    said = text_of(made(tmp_path, {"bench.json": documents.bench(rows)}))
    assert "Nothing is faster than plain decoding; ngram is 0.80x as fast." in said
    said = text_of(made(tmp_path, {"bench.json": documents.bench(rows[:1])}))
    assert "Nothing in these files is compared with plain decoding." in said


def test_the_table_has_every_measured_row_of_all_files(tmp_path: Path) -> None:
    found = documents.everything()
    found["tune.json"]["rows"].append({**found["tune.json"]["rows"][0], "tokens_per_s": None})
    html = made(tmp_path, found)
    rows = re.findall(r"<tr><td>(\d)</td>", html)
    assert [rows.count(str(number)) for number in range(1, 5)] == [9, 2, 3, 2]
    said = text_of(html)
    for part in (
        "prompt-lookup", "1.70x", "ROUGE-L", "25.00", "sd (gamma 4)", "3 of 3",
        "trtla bench --engine-dir engine", "2 cores of AMD EPYC", "command not recorded",
    ):  # fmt: skip
        assert part in said, part


@pytest.mark.parametrize("name", list(documents.everything()))
def test_each_kind_makes_a_page_alone(tmp_path: Path, name: str) -> None:
    html = made(tmp_path, {name: documents.everything()[name]})
    tables = [tag for tag, _ in Reader(html).seen].count("table")
    assert tables == html.count("<caption>") >= 2
    assert "Nothing in these files" not in html


def test_bars_are_as_long_as_their_values(tmp_path: Path) -> None:
    rows = [
        documents.bench_row(*row) for row in (("ar", "c", 1.0), ("x", "c", 2.0), ("y", "c", 0.5))
    ]
    html = made(tmp_path, {"bench.json": documents.bench(rows)})
    bars = re.findall(r'width: ([\d.]+)%"></div></div></td><td class="n">([\d.]+)x<', html)
    assert bars == [("100.0", "2.00"), ("50.0", "1.00"), ("25.0", "0.50")]
    assert html.count('style="--plain: 50.0%"') == len(bars)


def test_the_page_loads_nothing_and_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    html = made(tmp_path, documents.everything())
    assert html == made(tmp_path, documents.everything())
    assert not re.search("https?://|@import|url\\(", html)
    seen = Reader(html).seen
    assert not {tag for tag, _ in seen} & {"script", "link", "iframe", "object", "embed", "img"}
    assert not [attrs for _, attrs in seen if {"src", "href"} & set(attrs)]


def test_everything_from_files_is_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("1")</script>'
    more = {"setting": evil, "dtype": evil, "device": f'"{evil}'}
    rows = [documents.bench_row("ar", evil, 1.0, **more)]
    rows += [documents.bench_row(f"{evil}a", evil, 1.2, **more)]
    found = documents.bench(rows)
    found["settings"]["model"] = evil
    names = ("command", "cpu", "cores", "trtla", "get", evil)
    found["environment"] = dict.fromkeys(names, evil) | {"gpus": [evil, {evil: 3}]}
    tune = documents.tune()
    tune["settings"] = {"model": evil, "costs": evil}
    tune["environment"] = {"gpus": 5, "command": [evil], "cpu": {"get": evil}}
    for row in tune["rows"]:
        row["executor"] = evil
    html = made(tmp_path, {"b<script>.json": found, "tune.json": tune}, title=evil)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    Reader(html)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.deep
def test_in_chromium_a_phone_does_not_scroll_sideways(tmp_path: Path) -> None:
    """A copy in a frame of a phone's width, with a script that writes down what it measures."""
    html = made(tmp_path, documents.everything())
    html = html.replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';")
    probe = (
        "<script>onload = () => parent.postMessage([document.documentElement.scrollWidth, "
        "innerWidth], '*')</script></body>"
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
    found = re.search(r"found (\d+) (\d+)</p>", done.stdout)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    assert int(found[1]) <= int(found[2]) == 390
    assert "CONSOLE" not in done.stderr, done.stderr
