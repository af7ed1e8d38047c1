"""The Ray cluster of the replicas: a temporary one on this machine, or an existing one."""

from __future__ import annotations

import ctypes
import importlib.metadata
import logging
import os
import re
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from trtla.errors import TrtlaError, UsageError, first_line, install_hint
from trtla.machine import cpu

LEAST, BELOW = (2, 60), (3, 0)
"""Supported releases of Ray: LEAST <= release < BELOW, as in pyproject.toml."""
INSTALL = install_hint("ray")
_STORE = 128 << 20
"""Bytes of shared objects: little is sent here."""
_ADDRESS = "RAY_ADDRESS"
_KNOCK_S = 10.0
_ENVIRONMENT = {
    "RAY_ENABLE_AUTO_CONNECT": "0",  # else it starts a cluster when the connection is lost
    "GRPC_VERBOSITY": "NONE",
    "RAY_USAGE_STATS_ENABLED": "0",  # no reports over the internet
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no warning about actors' devices
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",  # ten times a second by default
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # the model has a thread already
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",  # a stream's piece costs less than as an actor's object
    "RAY_worker_niceness": "0",  # 15 by default: a busy machine would all but stop replicas
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # no messages about lost replicas on stdout
}
"""Ray reads these when it is imported."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGACTION = 512  # bytes, more than a struct sigaction has anywhere


def check_ray(*modules: str) -> None:
    """Refuse a missing or unsupported Ray."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise TrtlaError("--ray needs the package ray, which is not installed", INSTALL) from None
    release = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if not LEAST <= release < BELOW:
        least, below = (".".join(map(str, bound)) for bound in (LEAST, BELOW))
        raise TrtlaError(f"--ray needs Ray {least} or later below {below}, not {version}", INSTALL)
    for module in modules:
        if find_spec(module) is None:
            raise TrtlaError(f"--ray needs {module}, which is not installed", INSTALL)


def threads_each(replicas: int, threads: int | None) -> int:
    """Return the threads of each replica: the requested ones, else an equal share of the cores."""
    return threads or max(1, cpu().cores // replicas)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Ray's own warnings, which are for authors of Ray programs."""
    for name in ("ray", "ray.serve", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def kept_signals() -> Iterator[None]:
    """Restore Python's signal handlers afterwards: Ray's abort on SIGTERM.

    This calls libc, since Python sets handlers in the main thread only.
    """
    ours = {name: signal.getsignal(name) for name in _SIGNALS}
    libc = ctypes.CDLL(None)
    kept = [(name, ctypes.create_string_buffer(_SIGACTION)) for name in _SIGNALS]
    for name, action in kept:
        libc.sigaction(name, None, action)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for name, handler in ours.items():
                signal.signal(name, handler)
        for name, action in kept:
            libc.sigaction(name, action, None)


class Cluster:
    """A connection to Ray; a temporary cluster ends with it, even if this process is killed.

    Args:
        address: of a cluster; None: that of RAY_ADDRESS, else a temporary one on this machine.
        cores: of all replicas, for a temporary cluster.

    Raises:
        UsageError: there is no cluster at the address.
        TrtlaError: Ray does not start.
    """

    def __init__(self, address: str | None, cores: int) -> None:
        self.address = address or os.environ.get(_ADDRESS) or None
        self.is_own = self.address in (None, "local")
        with quiet(), kept_signals():
            self._connect(cores)

    def _connect(self, cores: int) -> None:
        import ray

        temporary = {
            "num_cpus": max(cores, cpu().cores),
            "include_dashboard": False,
            "object_store_memory": _STORE,
        }
        if ray.is_initialized():
            raise TrtlaError("this process uses Ray already", "start a process of its own")
        try:
            if not self.is_own:
                self._knock()
            ray.init(
                address="local" if self.is_own else self.address,
                namespace="trtla",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **(temporary if self.is_own else {}),
            )
        except (OSError, ValueError, RuntimeError) as error:
            if self.is_own:
                raise TrtlaError(f"Ray does not start: {first_line(error)}", INSTALL) from None
            raise self._absent(error) from None
        except Exception as error:  # Ray's processes fail in many ways
            raise TrtlaError(f"Ray does not start: {first_line(error)}", INSTALL) from None

    def _absent(self, error: Exception) -> UsageError:
        if self.address == "auto":
            return UsageError("no Ray cluster runs on this machine", "start one with ray start")
        return UsageError(
            f"no Ray cluster answers at {self.address}: {first_line(error)}",
            "check --ray-address, RAY_ADDRESS, and RAY_AUTH_MODE=token where the cluster wants a "
            "token; or omit the address for a cluster of its own",
        )

    def _knock(self) -> None:
        """Check that the address accepts connections: Ray itself would try for minutes."""
        host, _, port = (self.address or "").rpartition("/")[2].rpartition(":")
        if host and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()

    @property
    def has_gpus(self) -> bool:
        import ray

        return bool(ray.cluster_resources().get("GPU"))

    def close(self) -> None:
        """Disconnect; a temporary cluster ends."""
        import ray

        with quiet(), kept_signals():
            ray.shutdown()
