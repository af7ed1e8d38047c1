"""Routing of requests: to the replica that has their beginning, unless it is much busier.

A subclass of Ray Serve's public `RequestRouter`, which does all else: it knows the replicas, asks
them whether they have room, and continues with the next one otherwise. It runs in the server's
process alone, so its counts are complete. Ray's own prefix router compares texts and calls an actor
for each request; this one compares token ids, of which K/V blocks are made.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter

from trtla.extras.ray.beginnings import Beginnings
from trtla.runtime.request import Request

_SLACK = 4
"""A replica with a text's beginning gets that text if it has at most this many texts more than the
least busy one."""


class PrefixRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Prefers the replica with the beginning, else the least busy one."""

    def initialize_state(self, **_: Any) -> None:
        self._beginnings = Beginnings()
        self._busy: dict[Any, set[str]] = {}

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: PendingRequest | None = None
    ) -> list[list[Any]]:
        load = {
            replica.replica_id: self._load(replica.replica_id) for replica in candidate_replicas
        }
        mixed = random.sample(candidate_replicas, len(candidate_replicas))
        ordered = sorted(mixed, key=lambda replica: load[replica.replica_id])
        owner = self._beginnings.longest(_ids(pending_request), set(load))
        if owner is not None and load[owner] <= min(load.values()) + _SLACK:
            ordered.sort(key=lambda replica: replica.replica_id != owner)
        return [[replica] for replica in ordered]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        self._busy.setdefault(replica_id, set()).add(pending_request.metadata.internal_request_id)
        self._beginnings.add(_ids(pending_request), replica_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._busy.get(replica_id, set()).discard(internal_request_id)

    def _load(self, replica_id: ReplicaID) -> int:
        return len(self._busy.get(replica_id, ()))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._busy.pop(replica_id, None)


def _ids(pending: PendingRequest | None) -> Sequence[int]:
    """Return the tokens at the beginning of a call's request; empty if nothing may be shared."""
    for argument in () if pending is None else pending.args:
        if isinstance(argument, Request) and not argument.private:
            return (*argument.given_ids, *argument.begun)
    return ()
