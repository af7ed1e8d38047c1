"""Tensor parallelism: the command line in two processes, on the stand-in.

Once as mpirun starts them, where it is installed, and once with the environment that Open MPI would
set; rank 0 talks, the other one serves.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trtla.build.convert import convert

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[2]
STANDIN = Path(__file__).parent / "standin"
PROMPT = "def read(path):\n    "
LIMITS = ("--max-batch-size", "4", "--max-input-len", "64", "--max-seq-len", "128")

Ended = list[tuple[int, str, str]]
"""Exit code, stdout and stderr of every process."""
Launch = Callable[..., Ended]


def environment(folder: Path) -> dict[str, str]:
    """One H100 a process, the stand-in, and a place where its ranks meet."""
    path = os.pathsep.join([str(STANDIN), str(ROOT)])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PATH": os.pathsep.join([str(STANDIN / "bin"), os.environ["PATH"]]),
        "TENSORRT_LLM_STANDIN_GPU": "9.0",
        "TENSORRT_LLM_STANDIN_MPI_DIR": str(folder),
    }


@pytest.fixture(scope="module")
def split_engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of two ranks, built by the command line."""
    folder = tmp_path_factory.mktemp("split")
    convert(tiny_model, folder / "checkpoint", dtype="float16", tp_size=2)
    command = [
        "build", "--checkpoint-dir", str(folder / "checkpoint"), "--output-dir",
        str(folder / "engine"), "--backend", "tensorrt-llm", "--lookahead", "4,4,4", *LIMITS,
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "trtla", *command],
        env=environment(folder),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder / "engine"


@pytest.fixture(params=["by hand", "mpirun"])
def launch(request: pytest.FixtureRequest, tmp_path: Path) -> Launch:
    """Starts the command line in `size` processes and waits for their end."""

    def by_hand(size: int, *args: str, stdin: str = "") -> Ended:
        world = {"OMPI_COMM_WORLD_SIZE": str(size)}
        children = [
            subprocess.Popen(
                [sys.executable, "-m", "trtla", *args],
                env={**environment(tmp_path), **world, "OMPI_COMM_WORLD_RANK": str(rank)},
                stdin=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        texts = [c.communicate(stdin if i == 0 else None, 120) for i, c in enumerate(children)]
        return [(c.returncode, *text) for c, text in zip(children, texts, strict=True)]

    def by_mpirun(size: int, *args: str, stdin: str = "") -> Ended:
        options = ["--allow-run-as-root", "--oversubscribe", "-n", str(size)]
        done = subprocess.run(
            ["mpirun", *options, sys.executable, "-m", "trtla", *args],
            env=environment(tmp_path),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return [(done.returncode, done.stdout, done.stderr)]

    if request.param == "by hand":
        return by_hand
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    return by_mpirun


def test_rank_0_alone_reads_the_prompt_and_gives_the_text_of_one_process(
    launch: Launch, split_engine: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    from trtla import LLM, SamplingParams
    from trtla.build.engine import build_engine
    from trtla.formats.engine_limits import BuildSettings

    build_engine(tiny_checkpoint, tmp_path / "one", BuildSettings(), backend="torch")
    with LLM(tmp_path / "one") as llm:
        (expected,) = llm.generate(PROMPT, SamplingParams(max_output_len=32))
    args = ("run", "-m", str(split_engine), "-p", "-", "-n", "32", "--json")
    ended = launch(2, *args, stdin=PROMPT)
    assert [code for code, _, _ in ended] == [0] * len(ended), ended
    (result,) = json.loads(ended[0][1])["results"]
    assert result["input_text"] == PROMPT
    assert tuple(result["output_ids"]) == expected.output_ids
    assert len(expected.output_ids) == 32
    assert "2 ranks" in json.loads(ended[0][1])["executor"]
    for _, out, err in ended[1:]:
        assert out == ""
        assert all(line.startswith("[TensorRT-LLM]") for line in err.splitlines()), err


def test_one_process_for_two_ranks_is_told_what_to_type(launch: Launch, split_engine: Path) -> None:
    ended = launch(1, "run", "--engine-dir", str(split_engine), "--input-text", PROMPT)
    assert ended[0][0] == 2
    assert "has 2 ranks, and 1 process runs" in ended[0][2]
    assert "mpirun -n 2 trtla" in ended[0][2]


def test_a_torch_engine_runs_in_one_process(
    launch: Launch, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    from trtla.build.engine import build_engine
    from trtla.formats.engine_limits import BuildSettings

    build_engine(tiny_checkpoint, tmp_path / "one", BuildSettings(), backend="torch")
    ended = launch(2, "run", "--engine-dir", str(tmp_path / "one"), "--input-text", PROMPT)
    assert ended[0][0] == 2
    assert "start it without mpirun" in ended[0][2]
