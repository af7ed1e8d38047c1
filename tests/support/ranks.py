"""Ranks: starting them from the command line, and texts that all of them have to write."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.support.models import Variant
from trtla import SamplingParams
from trtla.settings.drafting import DrafterSettings
from trtla.settings.sampling import BeamSettings

PROMPT = "for i in range(10):\n    print(i)\nfor j in range(10):"
LONG = SamplingParams(max_output_len=1000)
SOON_S = 300.0
TRTLA = (sys.executable, "-m", "trtla")


def children(process: int) -> list[int]:
    """The ranks that a process has started and that have not ended.

    By each process's parent: the kernel's own list of children leaves some out while others come
    and go.
    """
    each = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [one for one in each if parent(one) == process and alive(one) and is_rank(one)]


def parent(process: int) -> int | None:
    """The process that started it; None: it is gone."""
    try:
        after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(after_name.split()[1])


def is_rank(process: int) -> bool:
    try:
        return b"trtla.llm.open" in Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def soon(happens) -> bool:
    end = time.monotonic() + SOON_S
    while not happens() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(happens())


def run(model, *flags, **keys):
    """`trtla run` with these flags, SIGINT as on a terminal.

    Without any: on two ranks, and with texts that no machine writes before it is killed.
    """
    prompts = [PROMPT] if flags else [PROMPT] * 2000
    flags = flags or ("--tp-size", "2", "--max-output-len", "1500", "--no-lookahead")
    command = (*TRTLA, "run", "-m", str(model), "--dtype", "float32", "--input-text", *prompts)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen((*command, *flags), preexec_fn=_as_on_a_terminal, **pipes, **keys)


def _as_on_a_terminal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def free_port() -> int:
    """A port that nobody has, and nobody is given who asks for any: those are higher."""
    for port in random.Random().sample(range(20_000, 32_000), 1000):
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError("all ports are taken")


def launched(models, *flags):
    """What ranks that a launcher has started end with: (exit code, output, errors) of each."""
    while True:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        meeting |= {"WORLD_SIZE": str(len(models)), "LOCAL_WORLD_SIZE": str(len(models))}
        started = [
            run(model, *flags, env={**os.environ, **meeting, "RANK": str(rank)})
            for rank, model in enumerate(models)
        ]
        ended = [started[0].communicate(timeout=SOON_S)]
        if "the ranks cannot connect at" in ended[0][1]:  # somebody has taken the port meanwhile
            for process in started[1:]:
                process.kill()
                process.wait()
            continue
        ended += [process.communicate(timeout=SOON_S) for process in started[1:]]
        return [(one.returncode, *said) for one, said in zip(started, ended, strict=True)]


WIDE = Variant("wide", {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32})


PROMPTS = [
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):",
    "for i in range(10):\n    print(i)\nfor j in range(10):\n    print(j)\nfor k in range(10):",
    "x",
]
DRAFTERS = ("none", "auto", "lookahead", "ngram", "prompt-lookup", "draft")


def drafted(llm, drafter, prompts, sampling):
    """The output ids of all prompts, decoded together."""
    if drafter == "auto":
        done = llm.generate(prompts, sampling)
    elif drafter == "draft":
        (name,) = llm.limits.draft_models
        done = llm.generate(prompts, sampling, drafter=DrafterSettings(f"draft:{name}", gamma=3))
    elif drafter == "lookahead":
        done = llm.generate(prompts, sampling, llm.limits.lookahead)
    else:
        done = llm.generate(prompts, sampling, drafter=DrafterSettings(drafter))
    return [one.output_ids for one in done]


def samplings(count, length=32):
    """Greedy, and drawn with seeds and filters."""
    drawn = [
        SamplingParams(length, temperature=0.8, top_k=20, top_p=0.9, seed=seed)
        for seed in range(count)
    ]
    penalised = [
        SamplingParams(length, 0.8 * (i % 2), repetition_penalty=1.2, min_p=0.05, logit_bias={5: 2})
        for i in range(count)
    ]
    return [SamplingParams(length)] * count, drawn, penalised


def everything(llm, prompts):
    """What a model says in all ways that there are."""
    texts = [
        drafted(llm, drafter, prompts, sampling)
        for sampling in samplings(len(prompts))
        for drafter in DRAFTERS[: len(DRAFTERS) - (not llm.limits.draft_models)]
    ]
    beams = llm.beam_search(prompts[0], BeamSettings(num_beams=3), max_output_len=12)
    return texts, [beam.output_ids for beam in beams]
