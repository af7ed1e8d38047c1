"""A rank that another process has started: `python -m trtla.llm.rank` opens its part and serves."""

from __future__ import annotations

import sys
from pathlib import Path

from trtla.errors import RankLost, TrtlaError
from trtla.llm.open import open_model
from trtla.llm.ranks import on_rank
from trtla.runtime.loop.start import open_torch_executor
from trtla.runtime.models.load import resolve_device
from trtla.runtime.ranks.launch import rank_input
from trtla.runtime.ranks.world import World


def main() -> int:
    """Serve until rank 0 closes; the exit code."""
    (path, lookahead, options), place, store = rank_input()
    try:
        options = on_rank(options, place.rank)
        world = World(store, place, resolve_device(options.device))
        engine = open_model(Path(path), lookahead)
        with open_torch_executor(engine, options, {}, world):
            pass  # leaving serves to the end
    except RankLost:
        return 1  # rank 0 has ended, and says why
    except TrtlaError as error:
        sys.stderr.write(f"rank {place.rank}: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
