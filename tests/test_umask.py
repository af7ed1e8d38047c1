"""Who may read what is written: as the umask says, whatever writes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.command import needs
from trtla.files import write_whole


def mode(path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002])
def test_a_file_follows_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        path = write_whole(tmp_path / "a", "b")
        assert mode(path) == 0o666 & ~umask
        path.chmod(0o640)
        assert mode(write_whole(path, "c")) == 0o640 & ~umask
        path.chmod(0o600)
        assert mode(write_whole(path, "d", durable=True)) == 0o600
        assert [one.name for one in tmp_path.iterdir()] == ["a"]
    finally:
        os.umask(before)


@needs("batch")
def test_answers_and_kept_texts_of_a_batch_are_its_owners(tmp_path, tiny_llama):
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
    body = {"prompt": "def f(", "max_tokens": 2}
    (tmp_path / "in.jsonl").write_text(json.dumps({**line, "body": body}))
    command = [sys.executable, "-m", "trtla", "batch", "in.jsonl", "-o", "out"]
    flags = ["-m", str(tiny_llama), "--save-corpus", "texts.jsonl"]
    subprocess.run([*command, *flags], cwd=tmp_path, check=True, umask=0o077)
    written = [tmp_path / "texts.jsonl", *(tmp_path / "out").iterdir()]
    assert {"output.jsonl", "errors.jsonl", "job.json"} <= {one.name for one in written}
    assert [one.name for one in written if mode(one) & 0o077] == []
