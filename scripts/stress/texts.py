"""Random requests to random small models; every answer is compared with plain decoding alone.

Requests of all kinds meet in one LLM: every drafter, auto with any sources and few nodes,
expected outputs, all sampling settings, stop strings, end ids, chunked prompts, kept blocks, small
caches, consumers that leave, time limits, interrupts and several threads, on the compiled forward
and on PyTorch's operations, in float32.
Ids, texts and finish reasons must be those of the request alone with (1,1,0), and no cache block
may be lost. On the first difference it writes a script that shows it, and exits with 1. A seed
gives the same requests; what time limits, signals and threads meet depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin count as endless loops
os.environ.setdefault("OMP_NUM_THREADS", "1")  # rounds set their own; forks cannot use a pool

from stress.child import Round, run_random, run_world, warm_up
from stress.worlds import PARTS, World

from trtla.errors import TrtlaWarning

_TRIES = 10
"""How often a fault of timing may be looked for before it counts as gone."""


def main(arguments: list[str]) -> int:
    """Run rounds until the time is over or one fails; the exit code."""
    args = _parse(arguments)
    warnings.simplefilter("ignore", TrtlaWarning)  # settings are drawn at random
    with tempfile.TemporaryDirectory(prefix="trtla-stress-") as folder:
        return _rounds(args, Path(folder))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="stress texts", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", type=_parts, default=(), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--output-dir", type=Path, default=Path(), help="where a script is written")
    return parser.parse_args(arguments)


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    if unknown := set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: use {','.join(PARTS)}")
    return parts


def _rounds(args: argparse.Namespace, root: Path) -> int:
    warm_up(root)
    started, counts, rounds, minute = time.monotonic(), Counter[str](), 0, 1
    while (passed := time.monotonic() - started) < 60 * args.minutes:
        if passed >= 60 * minute:
            _report(minute, rounds, counts)
            minute += 1
        found = run_random(args.seed * 10**6 + rounds, args.without, root)
        counts += found.counts
        rounds += 1
        if found.fault is not None:
            _report(minute, rounds, counts, wrong=1)
            _show(found, args.output_dir, root)
            return 1
    _report(minute, rounds, counts)
    return 0


def _report(minute: int, rounds: int, counts: Counter[str], wrong: int = 0) -> None:
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    requests = counts.total() - counts["rounding"]
    print(
        f"minute {minute}: {requests} requests in {rounds} rounds, {wrong} wrong ({kinds})",
        flush=True,
    )


def _show(found: Round, folder: Path, root: Path) -> None:
    """Print the fault, make it small and write its script."""
    path = folder / f"stress-fault-{found.world.seed}.py"
    write_script(found, _TRIES, path)
    print(f"wrong: {found.fault}\nmaking it small; as it is, in {path}", flush=True)
    again = run_world(found.world, _TRIES, root)
    small = found if again.fault is None else smallest(again, root, _TRIES, 120.0)
    write_script(small, _TRIES, path)
    rare = "" if again.fault else f"; it did not come again in {_TRIES} tries"
    print(f"it shows itself with: {sys.executable} {path}{rare}\n{small.fault}")


_SCRIPT = '''"""A fault that `scripts/stress texts` found; exits with 1 while it is there.

{fault}
"""

import sys

sys.path[:0] = [{scripts!r}, {project!r}]
from stress.child import repeat

WORLD = r"""
{world}
"""

sys.exit(repeat(WORLD, tries={tries}))
'''


def smallest(found: Round, root: Path, tries: int, seconds: float) -> Round:
    """The round with as few requests and settings as still fail, as far as the time goes."""
    deadline, smaller = time.monotonic() + seconds, True
    while smaller:
        smaller = False
        for world in _simpler(found.world):
            if time.monotonic() > deadline:
                return found
            again = run_world(world, tries, root)
            if again.fault is not None:
                found, smaller = again, True
                break
    return found


def _simpler(world: World) -> Iterator[World]:
    """The world with less of one thing."""
    requests = world.requests
    if len(requests) > 2:
        half = len(requests) // 2
        yield from (replace(world, requests=part) for part in (requests[:half], requests[half:]))
    if len(requests) > 1:
        for index in range(len(requests)):
            yield replace(world, requests=requests[:index] + requests[index + 1 :])
    plain = {"callers": 1, "interrupts": False, "reuse": False, "spare_blocks": None}
    plain |= {"torch_threads": 1, "options": {}, "batch": 1}
    for name, value in plain.items():
        if getattr(world, name) != value:
            yield replace(world, **{name: value})
    for index, one in enumerate(requests):
        for name in one.sampling.keys() - {"max_output_len"}:
            sampling = {key: value for key, value in one.sampling.items() if key != name}
            simpler = replace(one, sampling=sampling)
            yield replace(world, requests=(*requests[:index], simpler, *requests[index + 1 :]))


def write_script(found: Round, tries: int, path: Path) -> None:
    """Write the script."""
    scripts = Path(__file__).resolve().parents[1]
    world = json.dumps(asdict(found.world), indent=1)
    text = _SCRIPT.format(
        fault=(found.fault or "").replace("\\", "\\\\").replace('"""', "'''"),
        scripts=str(scripts), project=str(scripts.parent), world=world, tries=tries,
    )  # fmt: skip
    path.write_text(text, encoding="utf-8")
