"""Ranks that end, are interrupted, or do not fit each other: an error soon, and nobody left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time

import pytest
from safetensors.torch import load_file, save_file

from tests.support.ranks import LONG, PROMPT, SOON_S, TRTLA, alive, children, launched, run, soon
from tests.support.unchanged import RANK_SOURCES
from trtla import LLM, SamplingParams
from trtla.errors import RankLost
from trtla.settings.lookahead import AUTOREGRESSIVE

pytestmark = RANK_SOURCES


@pytest.fixture
def ranks(tiny_llama):
    with LLM(tiny_llama, dtype="float32", tp_size=2) as llm:
        (other,) = children(os.getpid())
        yield llm, other


def test_a_rank_that_is_killed_ends_the_text_with_an_error(ranks):
    llm, other = ranks
    stream = llm.stream([PROMPT] * 100, LONG, AUTOREGRESSIVE)
    next(stream)
    os.kill(other, signal.SIGKILL)
    with pytest.raises(RankLost, match="rank 1 has ended with exit code -9"):
        list(stream)
    started = time.monotonic()
    with pytest.raises(RankLost):
        llm.generate([PROMPT], LONG)
    llm.close()
    assert time.monotonic() - started < SOON_S
    assert not children(os.getpid())


@pytest.mark.deep
def test_closing_ends_the_other_ranks(ranks):
    llm, other = ranks
    llm.close()
    assert not alive(other)


@pytest.mark.deep
@pytest.mark.parametrize("killed", ["rank 0", "rank 1"])
def test_who_is_killed_at_any_moment_takes_the_others_along(tiny_llama, killed):
    draw = random.Random(killed)
    for most in (0.0, 5.0, 5.0):
        killed_after(tiny_llama, killed, draw.uniform(0.0, most))


def killed_after(model, killed, seconds):
    process = run(model)
    assert soon(lambda: children(process.pid))
    (other,) = children(process.pid)
    time.sleep(seconds)
    os.kill(process.pid if killed == "rank 0" else other, signal.SIGKILL)
    _, said = process.communicate(timeout=SOON_S)
    assert soon(lambda: not alive(other))
    if killed == "rank 1":
        assert process.returncode == 1
        assert "rank 1 has ended with exit code -9" in said
        assert "Traceback" not in said


@pytest.mark.deep
def test_interrupts_at_any_moment_change_no_text_of_what_follows(ranks):
    llm, other = ranks
    given = SamplingParams(max_output_len=600, temperature=0.7, seed=3)  # takes over 20 ms
    wanted = llm.generate([PROMPT], given)[0].output_ids
    draw, interrupted = random.Random(5), 0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(25):
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.001, 0.02))
            try:
                assert llm.generate([PROMPT], given)[0].output_ids == wanted
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 5
    assert llm.generate([PROMPT], given)[0].output_ids == wanted
    assert alive(other)


@pytest.mark.deep
def test_ranks_of_a_launcher_print_one_text_which_is_that_of_one_process(tiny_llama):
    flags = ("--max-output-len", "40", "--quiet")
    (code, text, _), (other, nothing, _) = launched([tiny_llama, tiny_llama], *flags)
    assert (code, other, nothing) == (0, 0, "")
    assert text == run(tiny_llama, *flags).communicate()[0] != ""


@pytest.mark.deep
def test_ranks_of_different_checkpoints_are_refused(tiny_llama, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tiny_llama, other)
    (path,) = other.glob("*.safetensors")
    tensors = load_file(path)
    tensors["model.layers.2.mlp.up_proj.weight"] *= 2
    save_file(tensors, path, {"format": "pt"})
    for code, text, said in launched([tiny_llama, other], "--max-output-len", "4"):
        assert (code, text) == (2, "")
        assert "error: the model of rank" in said
        assert "hint: start all ranks with the same model" in said


@pytest.mark.deep(first=1)
@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("3", "tp_size 3 does not divide num_attention_heads 4"),
        ("0", "tp_size is 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_ranks_start(tiny_llama, size, said):
    process = run(tiny_llama, "--tp-size", size)
    _, errors = process.communicate(timeout=SOON_S)
    assert process.returncode == 2
    assert f"error: {said}\n" in errors
    assert "hint: " in errors


@pytest.mark.deep
def test_a_port_in_use_is_one_sentence(tiny_llama):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": "0"}
        process = run(tiny_llama, "--max-output-len", "4", env={**os.environ, **env})
        _, said = process.communicate(timeout=SOON_S)
    assert process.returncode == 1
    assert f"error: the ranks cannot connect at 127.0.0.1:{port}" in said
    assert "hint: choose another --master-port" in said
    assert "Traceback" not in said


@pytest.mark.deep
def test_a_server_whose_rank_has_ended_ends_while_it_is_idle(tiny_llama):
    command = (*TRTLA, "serve", "-m", str(tiny_llama), "--port", "0", "--tp-size", "2")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert any("listens on" in line for line in server.stderr)
            (other,) = children(server.pid)
            os.kill(other, signal.SIGKILL)
            errors = server.stderr.read()
            server.wait(SOON_S)
        finally:
            server.kill()
    assert server.returncode == 1
    assert "rank 1 has ended with exit code -9" in errors
