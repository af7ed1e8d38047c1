"""Random load, compared with what each request gives alone; exit code 1 for any difference.

    python scripts/stress texts --minutes 10 --seed 1     random requests to random small models
    python scripts/stress server --minutes 2              clients that stream, cancel and vanish
    python scripts/stress fuzz --count 10000              malformed and hostile requests
    python scripts/stress batch --kills 20                a job of `trtla batch` that is killed
    python scripts/stress replicas --model MODEL          replicas that are killed under load

`--help` behind a name lists its flags.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(ROOT / "scripts"), str(ROOT)]

NAMES = ("texts", "server", "fuzz", "batch", "replicas")

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        sys.exit(__doc__)
    sys.exit(import_module(f"stress.{sys.argv[1]}").main(sys.argv[2:]))
