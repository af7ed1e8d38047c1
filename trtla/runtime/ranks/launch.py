"""Launching the other ranks on this machine, each in a process that ends with this one."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import TCPStore  # type: ignore[attr-defined]

from trtla.runtime.ranks.place import OPENING, Place

_ENDS_WITHIN_S = 10.0
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Started:
    """The processes, and the store through which they connect."""

    processes: list[subprocess.Popen[bytes]]
    store: Store
    """In this process; only this machine can reach it."""

    def problem(self) -> str | None:
        """Return which of them has ended, and how; None if all run."""
        for rank, process in enumerate(self.processes, 1):
            if process.poll() is not None:
                hint = ", as it often does out of memory" if process.returncode == -9 else ""
                return f"rank {rank} has ended with exit code {process.returncode}{hint}"
        return None

    def let_go(self) -> None:
        """Release them: from a forked process, too, which did not start them."""
        for process in self.processes:
            if process.stdin is not None:
                with suppress(BrokenPipeError):  # it has ended before it has read all
                    process.stdin.close()

    def end(self) -> None:
        """Make sure that all have ended."""
        self.let_go()
        for process in self.processes:
            try:
                process.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start_ranks(module: str, opening: Any, size: int, threads: int) -> Started:
    """Start ranks 1 to `size` - 1, which run the module's `main`; that one calls `rank_input`.

    They import from the same paths as this process, whatever the working directory holds, and are
    no part of its terminal: Ctrl-C there interrupts this process only.
    """
    store, port = _listening_store()
    started = Started([], store)
    source = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; sys.exit(main())"
    try:
        for rank in range(1, size):
            process = subprocess.Popen(
                [sys.executable, "-c", source],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            )
            started.processes.append(process)
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended already, which `problem` reports
                pickle.dump((opening, Place(rank, size, size), port), process.stdin)
                process.stdin.flush()
    except BaseException:
        started.end()
        raise
    return started


def rank_input() -> tuple[Any, Place, Store]:
    """Return this process's input from `start_ranks`: what to open, its rank, the store.

    From now on the process ends together with its parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        opening, place, port = pickle.load(sys.stdin.buffer)  # noqa: S301  of the parent process
    except (EOFError, pickle.UnpicklingError):
        os._exit(1)
    threading.Thread(target=_end_with_parent, name="trtla-parent", daemon=True).start()
    return opening, place, TCPStore(_HOST, port, is_master=False, timeout=OPENING)


def _listening_store() -> tuple[Store, int]:
    """Return a store on a free port that only this machine can reach, and the port."""
    listening = socket.create_server((_HOST, 0))
    port = int(listening.getsockname()[1])
    file = listening.detach()  # the store closes it
    alone: dict[str, Any] = {"is_master": True, "wait_for_workers": False}
    store = TCPStore(_HOST, port, timeout=OPENING, master_listen_fd=file, **alone)
    return store, port


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)
