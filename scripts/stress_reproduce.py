"""From a round of stress.py that failed to a script that shows the fault with little."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from stress_child import Round, run_world
from stress_requests import World

_SCRIPT = '''"""A fault that scripts/stress.py found; exits with 1 while it is there.

{fault}
"""

import sys

sys.path[:0] = [{scripts!r}, {project!r}]
from stress_child import repeat

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
    asked = world.asked
    if len(asked) > 2:
        half = len(asked) // 2
        yield from (replace(world, asked=part) for part in (asked[:half], asked[half:]))
    if len(asked) > 1:
        for index in range(len(asked)):
            yield replace(world, asked=asked[:index] + asked[index + 1 :])
    plain = {"callers": 1, "interrupts": False, "reuse": False, "spare_blocks": None}
    plain |= {"torch_threads": 1, "options": {}, "batch": 1}
    for name, value in plain.items():
        if getattr(world, name) != value:
            yield replace(world, **{name: value})
    for index, one in enumerate(asked):
        for name in one.sampling.keys() - {"max_output_len"}:
            sampling = {key: value for key, value in one.sampling.items() if key != name}
            yield replace(
                world,
                asked=(*asked[:index], replace(one, sampling=sampling), *asked[index + 1 :]),
            )


def write_script(found: Round, tries: int, path: Path) -> None:
    """Write the script."""
    scripts = Path(__file__).resolve().parent
    world = json.dumps(asdict(found.world), indent=1)
    text = _SCRIPT.format(
        fault=(found.fault or "").replace("\\", "\\\\").replace('"""', "'''"),
        scripts=str(scripts), project=str(scripts.parent), world=world, tries=tries,
    )  # fmt: skip
    path.write_text(text, encoding="utf-8")
