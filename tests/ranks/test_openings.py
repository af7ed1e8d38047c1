"""Openings one after another, in forked processes, interrupted or wrongly placed: nothing stays."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import trtla
from tests.support.ranks import PROMPT, SOON_S, alive, children, launched, run, soon
from tests.support.unchanged import RANK_SOURCES
from trtla import LLM, SamplingParams
from trtla.errors import UsageError
from trtla.runtime.ranks.place import torchrun_place
from trtla.runtime.threads import num_threads, set_threads

pytestmark = [
    pytest.mark.deep,
    RANK_SOURCES,
]

PACKAGE = Path(trtla.__file__).parents[1]
SHORT = SamplingParams(max_output_len=4)
FORKED = """
import gc, os, sys, time
from trtla import LLM
llm = LLM(sys.argv[1], dtype="float32", tp_size=2)
child = os.fork()
if child == 0:
    HERE
"""
TWICE = """
import sys
from trtla import LLM, SamplingParams
from trtla.runtime.threads import num_threads, set_threads
for _ in range(2):
    with LLM(sys.argv[1], dtype="float32") as llm:
        if llm.is_leader:
            llm.generate(["x"], SamplingParams(max_output_len=4))
            print(llm.description)
"""


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def four_cores(monkeypatch):
    """Two for each of two ranks, however many there are."""
    monkeypatch.setattr("trtla.llm.open.usable_cores", lambda: 4)


@pytest.mark.usefixtures("four_cores")
def test_opening_again_and_again_holds_no_more_and_gives_the_threads_back(tiny_llama):
    held = []
    set_threads(3)
    try:
        for _ in range(3):
            with LLM(tiny_llama, dtype="float32", tp_size=2) as llm:
                assert num_threads() == 2
                llm.generate([PROMPT], SHORT)
            assert num_threads() == 3
            del llm
            held.append(descriptors())
            assert soon(lambda: descriptors() <= held[0])  # threads of PyTorch close some
    finally:
        set_threads(1)


@pytest.mark.usefixtures("four_cores")
def test_threads_come_back_when_the_last_has_closed_or_has_not_opened(tiny_llama):
    set_threads(3)
    try:
        first = LLM(tiny_llama, dtype="float32", tp_size=2)
        second = LLM(tiny_llama, dtype="float32", tp_size=2)
        first.close()
        assert num_threads() == 2
        second.close()
        assert num_threads() == 3
    finally:
        set_threads(1)


def forked(model, here):
    """A process that opens the model on two ranks, forks, and does this."""
    command = [sys.executable, "-c", FORKED.replace("    HERE", here), model]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=env)


@pytest.mark.parametrize("ends", ["sys.exit(0)", "del llm; gc.collect(); os._exit(0)"])
def test_a_forked_process_ends_and_the_ranks_go_on(tiny_llama, ends):
    here = f"""    {ends}
_, status = os.waitpid(child, 0)
llm.generate(["x"], None)
print(status)
llm.close()"""
    process = forked(tiny_llama, here)
    try:
        said, _ = process.communicate(timeout=SOON_S)
    finally:
        process.kill()
    assert said == b"0\n"


def test_a_forked_process_keeps_no_rank_alive(tiny_llama):
    here = """    time.sleep(600)
    os._exit(0)
print(child, flush=True)
time.sleep(600)"""
    process = forked(tiny_llama, here)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    (other,) = children(process.pid)
    process.kill()
    try:
        assert soon(lambda: not alive(other))
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate(timeout=SOON_S)


MAPPED = ("", "libtorch_cpu", "memfd:trtla")
"""What a rank has mapped: nothing yet, the library that it imports, the memory it shares."""


def opening(process, mapped):
    """The other rank of a process, when it has come so far."""
    assert soon(lambda: children(process.pid))
    (other,) = children(process.pid)
    assert soon(lambda: mapped in maps(other))
    return other


def maps(process):
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/maps").read_text()
    return ""


@pytest.mark.parametrize("mapped", MAPPED)
def test_who_is_killed_while_opening_leaves_no_folder(tiny_llama, tmp_path, mapped):
    process = run(tiny_llama, env={**os.environ, "TMPDIR": str(tmp_path)})
    other = opening(process, mapped)
    process.kill()
    _, said = process.communicate(timeout=SOON_S)
    assert "Traceback" not in said
    assert soon(lambda: not alive(other))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mapped", MAPPED)
def test_an_interrupt_while_opening_is_the_command_s_alone(tiny_llama, mapped):
    process = run(tiny_llama, start_new_session=True)
    other = opening(process, mapped)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=SOON_S)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert soon(lambda: not alive(other))


def test_ranks_import_what_their_parent_does_and_nothing_of_the_folder(tiny_llama, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "secrets.py").write_text("raise SystemExit('the folder has been imported')")
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(PACKAGE)!r})\nfrom trtla import LLM\n"
        "LLM(sys.argv[1], dtype='float32', tp_size=2).close()\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, program, tiny_llama], cwd=folder, env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_ranks_of_a_launcher_open_several_models_one_after_another(tiny_llama, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(TWICE)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *launcher, program, tiny_llama],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stdout.count("on 2 ranks\n") == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"RANK": "2"}, "RANK is 2, and WORLD_SIZE is 2"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE is 0, and WORLD_SIZE is 2"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE is 3, and WORLD_SIZE is 2"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK is 'x', not a number"),
    ],
)
def test_what_a_launcher_cannot_mean_is_refused(given, said, monkeypatch):
    meant = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in {**meant, **given}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as error:
        torchrun_place()
    assert error.value.message == said
    assert "torchrun" in error.value.hint


@pytest.mark.parametrize("changed", [{"rope_theta": 777.0}, {"rms_norm_eps": 0.5}])
def test_ranks_of_models_with_different_settings_are_refused(tiny_llama, tmp_path, changed):
    other = tmp_path / "other"
    shutil.copytree(tiny_llama, other)
    config = json.loads((other / "config.json").read_text())
    if "rope_theta" in changed and "rope_parameters" in config:
        changed = {"rope_parameters": {**config["rope_parameters"], **changed}}
    (other / "config.json").write_text(json.dumps({**config, **changed}))
    for code, text, said in launched([tiny_llama, other], "--max-output-len", "4"):
        assert (code, text) == (2, "")
        assert "error: the configuration of rank" in said
