"""scripts/real_sizes.sh at small sizes: files, documents and the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gguf_models import BYTE_LEVEL, byte_vocabulary, write_gguf
from tests.support.models import Variant, make_model
from trtla import LLM, SamplingParams

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from real_sizes_families import KINDS  # noqa: E402
from real_sizes_files import write_enlarged, write_random  # noqa: E402


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokens = byte_vocabulary()
    model = make_model(Variant("", {"vocab_size": len(tokens), "max_position_embeddings": 8192}))
    template = "{{ messages[0].content }}"
    tokenizer = {**BYTE_LEVEL, "tokens": tokens, "merges": ["a b"], "chat_template": template}
    return write_gguf(model, tmp_path_factory.mktemp("sample") / "s.gguf", tokenizer=tokenizer)


def test_an_enlarged_file_continues_as_its_source(sample: Path, tmp_path: Path) -> None:
    write_enlarged(tmp_path / "large.gguf", sample)
    write_random(tmp_path / "random.gguf", sample, "tiny")
    params = SamplingParams(max_output_len=1)
    found = []
    for file in (sample, tmp_path / "large.gguf", tmp_path / "random.gguf"):
        with LLM(file, dtype="float32", threads=1) as llm:
            found.append(
                [one.output_ids[0] for one in llm.generate([[i] for i in range(40)], params)]
            )
    same = [sum(a == b for a, b in zip(found[0], other, strict=True)) for other in found[1:]]
    assert same[0] > 25  # Q4_0 rounds the weights of one of them
    assert same[1] < 10


@pytest.mark.deep
@pytest.mark.parametrize("family", sorted(KINDS))
def test_a_random_file_of_every_family_runs(family: str, sample: Path, tmp_path: Path) -> None:
    write_random(tmp_path / "m.gguf", sample, "tiny", KINDS[family])
    with LLM(tmp_path / "m.gguf") as llm:
        assert "int8 on Q4_0" in llm.description
        (text,) = llm.generate([[1, 2, 3]], SamplingParams(max_output_len=4))
    assert len(text.output_ids) == 4


@pytest.mark.deep
def test_a_table_of_small_sizes(sample: Path, tmp_path: Path) -> None:
    program, out = Path(sys.executable).with_name("trtla"), tmp_path / "out"
    server = tmp_path / "llama-server"  # -m FILE --port PORT ...
    server.write_text(f'#!/bin/sh\nexec "{program}" serve -m "$2" --port "$4"\n')
    server.chmod(0o755)
    environment = {**os.environ, "TRTLA": str(program), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [
        "bash",
        ROOT / "scripts" / "real_sizes.sh",
        out,
        "--sizes",
        "135M,tiny-gemma3",
        "--quick",
    ]
    ran = subprocess.run(
        [*map(str, command), "--sample", str(sample)],
        env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    machine, _, _, rule, *rows, _, _, _, compared = ran.stdout.splitlines()
    assert " GB/s with 1 thread, " in machine
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[:3:2] for row in cells] == [
        ["135M", "1"],
        ["135M", "2"],
        ["tiny-gemma3", "1"],
        ["tiny-gemma3", "2"],
    ]
    assert all(len(row) == rule.count("|") - 1 for row in cells)
    assert all("(" in row[8] for row in cells[:2])
    assert all(row[8:] == ["-", "-", "-"] for row in cells[2:])
    assert all(float(cell) < 1e-5 for cell in compared.split("|")[2:4])
    served = json.loads((out / "135M.json").read_text())["ngram_mod"]
    assert all(ms > 0 for ms in served.values())
    assert len(served) == 2
    document = json.loads((out / "tiny-gemma3.json").read_text())
    assert document["bytes"] > document["read_bytes"] > 0
