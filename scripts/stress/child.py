"""Rounds, each in a process of its own: a crash or an endless loop is a fault too."""

from __future__ import annotations

import gc
import json
import multiprocessing
import resource
import signal
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

from stress.judge import Judge, Plain
from stress.rounds import play
from stress.worlds import World, random_requests, random_world, world_of

_CPU_SECONDS, _IDLE_SECONDS = 120, 120.0
"""When a round counts as one without end: of the processor's time, or without using any of it. A
round takes 1 to 4 seconds of the processor, and on a busy machine any number by the clock.
"""


@dataclass
class Round:
    """What came of a round."""

    world: World
    """With its requests, once they were made."""
    counts: Counter[str] = field(default_factory=Counter)
    fault: str | None = None
    """What is wrong; None: nothing."""


def warm_up(root: Path) -> None:
    """Import what every child needs, and compile the forward; no model runs in this process."""
    with Plain(random_world(0, ()), root):
        pass
    gc.freeze()  # what is here by now need not be looked through for lost blocks


def run_random(seed: int, without: tuple[str, ...], root: Path) -> Round:
    """The round of a seed."""
    return _in_child(random_world(seed, without), root)


def run_world(world: World, tries: int, root: Path) -> Round:
    """Run a world again, until it fails or was right this many times."""
    for _ in range(tries):
        found = _in_child(world, root)
        if found.fault is not None:
            break
    return found


def repeat(text: str, tries: int) -> int:
    """Run a world from its JSON; the exit code: 1 when an answer is wrong, else 0."""
    with TemporaryDirectory(prefix="trtla-stress-") as root:
        warm_up(Path(root))
        found = run_world(world_of(json.loads(text)), tries, Path(root))
    print(found.fault or f"right {tries} times")
    return int(found.fault is not None)


def _in_child(world: World, root: Path) -> Round:
    """A fork of this process, which has run no model itself."""
    result = root / "round.json"
    result.unlink(missing_ok=True)
    child = multiprocessing.get_context("fork").Process(target=_round, args=(world, root, result))
    child.start()
    _wait(child)
    ended = child.exitcode
    child.kill()
    child.join()
    found = _read(result, world)
    if ended is None:
        found.fault = f"it waited for {_IDLE_SECONDS:.0f} s and did nothing"
    elif ended == -signal.SIGXCPU:
        found.fault = f"no end after {_CPU_SECONDS} s of the processor"
    elif ended:
        found.fault = f"the process ended with exit code {ended}"
    return found


def _wait(child: BaseProcess) -> None:
    """Wait for its end, or until it has done nothing for a while."""
    used, idle = -1, 0.0
    while child.exitcode is None and idle < _IDLE_SECONDS:
        child.join(5.0)
        before, used = used, _cpu_ticks(child)
        idle = idle + 5.0 if used - before <= 1 else 0.0


def _cpu_ticks(child: BaseProcess) -> int:
    """Its time on the processor in clock ticks (proc(5)); 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _read(result: Path, world: World) -> Round:
    if not result.exists():
        return Round(world)
    values = json.loads(result.read_text(encoding="utf-8"))
    return Round(world_of(values["world"]), Counter(values["counts"]), values["fault"])


def _round(world: World, root: Path, result: Path) -> None:
    """In the child: make the requests, play, judge."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS + 5))
    found = Round(world)
    with Plain(world, root) as plain:
        if not world.requests:
            vocab_size = plain.llm.limits.vocab_size
            found.world = random_requests(world, vocab_size, plain.answer)
        _write(found, result)  # should this process die
        try:
            _judge(found, plain, root)
        except Exception:
            found.fault = traceback.format_exc().strip()
        _write(found, result)


def _judge(found: Round, plain: Plain, root: Path) -> None:
    outcomes, judge = play(found.world, root), Judge(found.world, plain, root)
    for request, answer in zip(found.world.requests, outcomes, strict=True):
        wrong = judge.wrong(request, answer)
        if wrong is not None:
            found.fault = f"{wrong}\n    of {replace(request, prompt=())}"
            break
    found.counts = judge.counts


def _write(found: Round, result: Path) -> None:
    values = {"world": asdict(found.world), "counts": found.counts, "fault": found.fault}
    being_written = result.with_suffix(".part")
    being_written.write_text(json.dumps(values), encoding="utf-8")
    being_written.rename(result)
