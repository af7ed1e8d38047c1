"""Random requests on random small models; every answer is compared with plain decoding alone.

    .venv/bin/python scripts/stress.py --minutes 10 --seed 1

Requests of all kinds meet in one LLM: every drafter and chain, auto with any sources and few nodes,
expected outputs, all sampling settings, stop strings, end ids, chunked prompts, kept blocks, small
caches, consumers that leave, time limits, interrupts and several threads, on the compiled forward
and on PyTorch's operations, in float32.
Ids, texts and finish reasons must be those of the request alone with (1,1,0), and no cache block
may be lost. On the first difference it writes a script that shows it, and exits with 1. A seed
gives the same requests; what time limits, signals and threads meet depends on the machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin count as endless loops
os.environ.setdefault("OMP_NUM_THREADS", "1")  # rounds set their own; forks cannot use a pool
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from stress_child import Round, run_random, run_world, warm_up
from stress_reproduce import smallest, write_script
from stress_requests import PARTS

from trtla.errors import TrtlaWarning

_TRIES = 10
"""How often a fault of timing may be looked for before it counts as gone."""


def main() -> int:
    """Run rounds until the time is over or one fails; the exit code."""
    given = _arguments()
    warnings.simplefilter("ignore", TrtlaWarning)  # settings are drawn at random
    with tempfile.TemporaryDirectory(prefix="trtla-stress-") as folder:
        return _rounds(given, Path(folder))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", type=_parts, default=(), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--output-dir", type=Path, default=Path(), help="where a script is written")
    return parser.parse_args()


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    if unknown := set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: use {','.join(PARTS)}")
    return parts


def _rounds(given: argparse.Namespace, root: Path) -> int:
    warm_up(root)
    started, counts, rounds, minute = time.monotonic(), Counter[str](), 0, 1
    while (passed := time.monotonic() - started) < 60 * given.minutes:
        if passed >= 60 * minute:
            _report(minute, rounds, counts)
            minute += 1
        found = run_random(given.seed * 10**6 + rounds, given.without, root)
        counts += found.counts
        rounds += 1
        if found.fault is not None:
            _report(minute, rounds, counts, wrong=1)
            _show(found, given.output_dir, root)
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


if __name__ == "__main__":
    sys.exit(main())
