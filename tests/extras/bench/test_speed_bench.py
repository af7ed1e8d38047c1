"""SPEED-Bench's files in `bench`: made-up prompts in the columns that NVIDIA's scripts write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import trtla
from trtla.data.prompt_sets import load_sets
from trtla.errors import TrtlaError, UsageError

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"


def row(category: str, *turns: str, **columns: Any) -> dict[str, Any]:
    return {
        "question_id": f"{len(turns[0]):032x}",
        "category": category,
        "sub_category": None,
        "turns": list(turns),
        "source": "https://huggingface.co/datasets/made/up",
        "src_id": "made_up_3",
        "difficulty": "hard",
        "multiturn": len(turns) > 1,
        **columns,
    }


ROWS = [
    row("coding", "Sort a list.", "Backwards."),
    row("roleplay", "You are a lighthouse."),
    row("coding", "Add two numbers.", sub_category="python"),
]


def with_messages(line: dict[str, Any]) -> dict[str, Any]:
    turns = line["turns"]
    others = {key: value for key, value in line.items() if key != "turns"}
    return {**others, "messages": [{"role": "user", "content": turn} for turn in turns]}


def write_jsonl(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pytest.importorskip("pyarrow")
    from pyarrow import Table
    from pyarrow.parquet import write_table

    write_table(Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("form", ["turns", "messages", "parquet"])
def test_every_form_is_read_by_category(form: str, tmp_path: Path) -> None:
    if form == "parquet":
        path = write_parquet(tmp_path / "test.parquet", ROWS)
    else:
        lines = ROWS if form == "turns" else [with_messages(line) for line in ROWS]
        path = write_jsonl(tmp_path / "qualitative.jsonl", lines)
    coding, roleplay = load_sets([str(path)], (), 10)
    assert [one.turns for one in coding.questions] == [
        ("Sort a list.", "Backwards."),
        ("Add two numbers.",),
    ]
    assert (roleplay.category, roleplay.texts) == ("roleplay", ("You are a lighthouse.",))
    assert all(one.is_chat for one in (*coding.questions, *roleplay.questions))


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (row("qa", f"{PLACEHOLDER}\n\n{{question}}"), "line 1 .*placeholder"),
        (with_messages(row("qa", "Why?", PLACEHOLDER)), "line 1 .*placeholder"),
        ({**with_messages(row("qa", "Why?")), "turns": ["Why?"]}, 'needs either "text" or "turns"'),
        ({"messages": []}, "empty prompt"),
        ({"messages": [{"role": "system", "content": "Be brief."}]}, "messages.0.role"),
    ],
)
def test_what_is_no_prompt_is_refused(line: dict[str, Any], part: str, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "qualitative.jsonl", [line])
    with pytest.raises(UsageError, match=part):
        load_sets([str(path)], (), 10)


def test_parquet_files_that_cannot_be_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "test.parquet", [row("qa", PLACEHOLDER)])
    with pytest.raises(UsageError, match=r"row 1 of .*test.parquet has SPEED-Bench's placeholder"):
        load_sets([str(path)], (), 10)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UsageError, match="cannot be read as a Parquet file"):
        load_sets([str(path)], (), 10)
    path = write_parquet(tmp_path / "bytes.parquet", [row("qa", "a prompt to damage")])
    path.write_bytes(path.read_bytes().replace(b"to damage", b"to d\xff\xffage"))
    with pytest.raises(UsageError, match=r"cannot be read as a Parquet file: .*utf-8"):
        load_sets([str(path)], (), 10)
    with pytest.raises(UsageError, match="does not exist"):
        load_sets([str(tmp_path / "other.parquet")], (), 10)
    monkeypatch.setattr("trtla.data.speed_bench.is_installed", lambda _: False)
    with pytest.raises(TrtlaError, match="needs pyarrow") as raised:
        load_sets([str(path)], (), 10)
    assert "trtla[eval]" in str(raised.value.hint)


def test_bench_measures_each_category(model: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "qualitative.jsonl", ROWS)
    ran = trtla(
        "bench", "--engine-dir", model, "--lookahead", "2,2,2", "--max-output-len", "6",
        "--temperature", "0", "--rounds", "1", "--json", "--prompts", path,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    cells = {cell["category"]: cell["prompts"] for cell in ran.json["cells"]}
    assert (cells["coding"], cells["roleplay"]) == (3, 1)
    assert all(each["equal_texts"] == each["texts"] for each in ran.json["rows"])
