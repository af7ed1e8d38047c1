"""Measures on a machine with one NVIDIA GPU what trtla does there; scripts/gpu_check.sh runs it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # its modules are gpu_probe.NAME

from gpu_probe.stages import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
