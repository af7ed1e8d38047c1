"""The Ray cluster of the replicas: a temporary one on this machine, or an existing one."""

from __future__ import annotations

import logging
import os
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtla.console import counted
from trtla.errors import TrtlaError, UsageError, first_line, install_hint, is_installed
from trtla.machine import cpu

if TYPE_CHECKING:
    from trtla.cli.serve.served_model import ServedModelFlags
    from trtla.extras.ray.settings import ReplicaSettings

_ENVIRONMENT = {
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # it would end this process at SIGTERM
    "RAY_ENABLE_AUTO_CONNECT": "0",  # else it starts a cluster when the connection is lost
    "RAY_USAGE_STATS_ENABLED": "0",  # no reports over the internet
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # no messages about lost replicas on stdout
    "GRPC_VERBOSITY": "NONE",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",  # a stream's piece costs less than as an actor's object
    "RAY_worker_niceness": "0",  # 15 by default: a busy machine would all but stop replicas
}
"""Ray reads these when it is imported."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The number of replicas, and the resources of each."""

    least: int
    most: int
    threads: int
    gpus: int


def check_ray() -> None:
    """Refuse a missing Ray, and prepare the environment for its import."""
    os.environ.update(_ENVIRONMENT | dict(os.environ))
    if not is_installed("ray"):
        hint = install_hint("ray")
        raise TrtlaError("--ray needs the package ray, which is not installed", hint)


def connect(settings: ReplicaSettings, flags: ServedModelFlags) -> Pool:
    """Connect to Ray, and return what replicas with these flags get there.

    Call this in the main thread: the processes of a temporary cluster end with the thread that
    starts them.
    """
    import ray

    (least, most), device = settings.range, flags.options.device.partition(":")[0]
    threads = flags.options.threads or 1
    address = settings.ray_address or os.environ.get("RAY_ADDRESS") or "local"
    _connect(address, max(threads * most, cpu().cores))
    there = ray.cluster_resources()
    on_cpu = device == "cpu" or (device == "auto" and not there.get("GPU"))
    gpus = 0 if on_cpu else flags.options.tp_size or flags.options.lookahead_parallel or 1
    for kind, each, noun in (("GPU", gpus, "GPU"), ("CPU", threads, "core")):
        if there.get(kind, 0) < least * each:
            raise UsageError(
                f"{counted(least, 'replica')} of {counted(each, noun)} need "
                f"{counted(least * each, noun)}, and the cluster has {there.get(kind, 0):g}",
                "lower --replicas or --threads, add machines, or give --device cpu for no GPU",
            )
    return Pool(least, most, threads, gpus)


def _connect(address: str, cores: int) -> None:
    import ray

    own = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": 128 << 20}
    handler = signal.getsignal(signal.SIGTERM)  # Ray sets another one
    host, _, port = address.rpartition("/")[2].rpartition(":")
    try:
        if port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(
            address,
            namespace="trtla",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **(own if address == "local" else {}),
        )
    except Exception as error:  # Ray's processes fail in many ways
        raise UsageError(
            f"no Ray cluster answers at {address}: {first_line(error)}",
            "check --ray-address, RAY_ADDRESS, and RAY_AUTH_MODE=token where the cluster wants a "
            "token; or omit the address for a cluster of its own",
        ) from None
    signal.signal(signal.SIGTERM, handler)
