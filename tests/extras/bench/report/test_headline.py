"""The headline says no more than the documents show: too little, noise and contradictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import documents
from tests.support.documents import put
from trtla.extras.bench.report.page import report

_ENOUGH = {"rounds": 5, "texts": 3, "output_tokens": 384}
_LITTLE = {"rounds": 1, "texts": 1, "equal_texts": 1, "output_tokens": 24}


def bench(ratio: float, arm: str = "lookahead auto", **more: Any) -> dict[str, Any]:
    rows = [
        documents.bench_row(name, "code", own, **{**_ENOUGH, **more})
        for name, own in (("ar", 1.0), (arm, ratio))
    ]
    return documents.bench(rows)


def headline(folder: Path, *found: dict[str, Any]) -> tuple[str, str]:
    """The headline, and what of the page stands below it before its sections."""
    html = report([put(folder, f"{i}.json", one) for i, one in enumerate(found)], "Report")
    head = html.partition("<h1>")[2].partition("<main>")[0]
    text, _, rest = head.partition("</h1>")
    return text.replace("&#39;", "'"), rest


def test_too_little_is_the_headline(tmp_path: Path) -> None:
    text, rest = headline(tmp_path, bench(1.47, tokens_per_step=1.05, **_LITTLE))
    assert text == "Not enough to tell what is faster: 1 prompt and 1 round and 24 tokens."
    assert "1.47" not in rest


def test_a_document_of_enough_has_the_headline(tmp_path: Path) -> None:
    text, rest = headline(tmp_path, bench(1.47, **_LITTLE), bench(0.98))
    assert text == "Nothing is faster than plain decoding here; lookahead auto is as fast (0.98x)."
    assert "Document 1 rests on 1 prompt and 1 round and 24 tokens only" in rest


def test_documents_that_disagree_are_the_headline(tmp_path: Path) -> None:
    text, rest = headline(tmp_path, bench(1.47), bench(0.98))
    assert text == (
        "The documents disagree: lookahead auto decodes 1.47x as fast as plain decoding in "
        "document 1, 0.98x in document 2."
    )
    assert "Best speed-up" not in rest
    for other in (bench(1.2), bench(0.98, arm="ngram")):
        text, rest = headline(tmp_path, bench(1.47), other)
        assert text == "Lookahead auto decodes 1.47x as fast as plain decoding."
        assert "Best speed-up" in rest


@pytest.mark.parametrize(("steps", "believed"), [(1.05, False), (1.4, True), (None, True)])
def test_a_speed_up_is_at_most_the_tokens_per_step(
    tmp_path: Path, steps: float | None, believed: bool
) -> None:
    text, _ = headline(tmp_path, bench(1.47, tokens_per_step=steps))
    assert (text == "Lookahead auto decodes 1.47x as fast as plain decoding.") is believed
    assert believed or text.endswith("measured 1.47x, which 1.05 tokens a step cannot give.")
    text, _ = headline(tmp_path, bench(1.47, arm="llama.cpp", tokens_per_step=1.0))
    assert text == "llama.cpp decodes 1.47x as fast as plain decoding."


def test_what_compares_no_arms_follows_the_same_rule(tmp_path: Path) -> None:
    one = documents.run()
    text, _ = headline(tmp_path, {**one, "results": one["results"][:1]})
    assert text == "Not enough to tell what is faster: 1 prompt."
    assert headline(tmp_path, one)[0] == "The run is 1.30x as fast as with plain decoding."
    text, _ = headline(tmp_path, {**documents.summarize(), "items": 1})
    assert text == "Not enough to tell what is faster: 1 article."
