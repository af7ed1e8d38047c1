"""`trtla run --output-csv` and `--output-npy`: the rows of TensorRT-LLM's run.py."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from tests.support.command import refused, trtla


@pytest.mark.parametrize("beams", [(), ("--num-beams", "2")], ids=["texts", "beams"])
def test_rows_are_prompt_and_output(engine: Path, tmp_path: Path, beams: tuple[str, ...]) -> None:
    files = (tmp_path / "ids.csv", tmp_path / "ids.npy")
    ran = trtla(
        "run", engine, "-p", "Once upon", "To be, or not", "-n", "6", "--json", *beams,
        f"--output_csv={files[0]}", f"--output_npy={files[1]}",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    expected = [
        result["input_ids"] + one["output_ids"]
        for result in ran.json["results"]
        for one in result.get("beams", [result])
    ]
    array = np.load(files[1])
    assert array.dtype == np.int32
    assert array.shape == (len(expected), max(map(len, expected)))
    for row, ids in zip(array.tolist(), expected, strict=True):
        assert row[: len(ids)] == ids
        assert len(set(row[len(ids) :])) <= 1  # the end token
    with files[0].open(newline="") as file:
        assert [list(map(int, row)) for row in csv.reader(file)] == array.tolist()
    assert sorted(tmp_path.iterdir()) == sorted(files)


@pytest.mark.parametrize("flag", ["--output-csv", "--output-npy"])
def test_a_folder_that_is_missing(no_weights: Path, tmp_path: Path, flag: str) -> None:
    ran = trtla("run", no_weights, "ab", flag, tmp_path / "absent" / "x")
    refused(ran, 2, f"absent of {flag} does not exist", "make it first")


def test_a_pipe_is_written_to_and_stays(engine: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        ran = trtla("run", engine, "-p", "ab", "-n", "2", "--output-csv", pipe)
        assert ran.code == 0, ran.err
        assert os.read(reader, 1000).count(b",") == 3
    finally:
        os.close(reader)
    assert pipe.is_fifo()
