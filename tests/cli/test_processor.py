"""`trtla run --processor`: the same text as the filters it stands for, and what it excludes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Ran, refused, trtla


def run(engine: Path, *args: str) -> Ran:
    return trtla(
        "run", "--engine-dir", engine, "--input-text", "def f(", "--max-output-len", "12",
        "--seed", "3", *args,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("processor", "filters"),
    [
        ("greedy", ("--temperature", "0")),
        ("multinomial:1.5", ("--temperature", "1.5")),
        ("topk:2:5", ("--temperature", "2", "--top-k", "5")),
        ("nucleus:2:0.4", ("--temperature", "2", "--top-p", "0.4")),
    ],
)
def test_a_processor_writes_what_its_filters_write(
    engine: Path, processor: str, filters: tuple[str, ...]
) -> None:
    named, spelled = (
        run(engine, "--json", *args) for args in (("--processor", processor), filters)
    )
    assert named.code == spelled.code == 0, named.err
    texts = [ran.json["results"][0]["output_ids"] for ran in (named, spelled)]
    assert texts[0] == texts[1]


def test_processors_draw_different_texts(engine: Path) -> None:
    names = ("greedy", "multinomial:1.5", "topk:2:5", "nucleus:2:0.4")
    texts = [
        tuple(run(engine, "--json", "--processor", name).json["results"][0]["output_ids"])
        for name in names
    ]
    assert len(set(texts)) == len(names)


def test_what_does_not_go_together_is_refused(engine: Path) -> None:
    refused(run(engine, "--processor", "beam"), 2, "beam", "nucleus")
    refused(run(engine, "--processor", "nucleus:1:2"), 2, "top_p is 2")
    refused(run(engine, "--processor", "greedy", "--top-k", "3"), 2, "--processor", "--top-k")
