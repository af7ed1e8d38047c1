"""`trtla report`: files in, a page out, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import documents
from tests.support.command import refused, trtla


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(documents.bench()))
    return path


def test_a_page_is_written_and_its_size_told(bench: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    ran = trtla("report", bench, "-o", page, "--title", "Llama here")
    assert ran.code == 0, ran.err
    assert "<title>Llama here</title>" in page.read_text()
    assert "kB" in ran.out


def test_a_dash_prints_the_page(bench: Path) -> None:
    ran = trtla("report", bench, "--output", "-")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("<!DOCTYPE html>")
    assert ran.out.rstrip().endswith("</html>")


def test_a_page_is_replaced_with_force_only(bench: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("mine")
    refused(trtla("report", bench, "-o", page), 2, "report.html", "--force")
    assert page.read_text() == "mine"
    assert trtla("report", bench, "-o", page, "--force").code == 0
    assert page.read_text() != "mine"


def test_a_result_is_never_replaced(bench: Path) -> None:
    before = bench.read_text()
    link = bench.with_name("link.json")
    link.symlink_to(bench)
    for page in (bench, link):
        refused(trtla("report", bench, "-o", page, "--force"), 2, "one of the results", "--output")
    assert bench.read_text() == before


def test_what_cannot_be_used_is_refused(bench: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("{}")
    refused(trtla("report"), 2, "RESULTS")
    refused(trtla("report", tmp_path / "odd.json", "-o", tmp_path / "r.html"), 2, "odd.json")
    refused(trtla("report", tmp_path / "absent", "-o", tmp_path / "r.html"), 2, "absent")
    refused(trtla("report", bench, "-o", tmp_path / "no" / "r.html"), 2, "no", "--output")
    refused(trtla("report", bench, "-o", f"{tmp_path}/r/"), 2, "r/ is a folder", "report.html")
    assert not (tmp_path / "r").exists()
    assert not (tmp_path / "r.html").exists()


def test_real_results_make_a_page(engine: Path, tmp_path: Path) -> None:
    short = ("-n", "4", "--prompts", "code", "--num-prompts", "1")
    for name, form in (("bench.json", "json"), ("bench.csv", "csv")):
        ran = trtla("bench", engine, *short, "--rounds", "1", "--output-format", form)
        assert ran.code == 0, ran.err
        (tmp_path / name).write_text(ran.out)
    page = trtla("report", tmp_path / "bench.json", tmp_path / "bench.csv", "-o", "-")
    assert page.code == 0, page.err
    assert "1 of 1" in page.out
    assert "bench.csv" in page.out
