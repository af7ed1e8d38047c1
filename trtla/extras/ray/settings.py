"""Settings of replicas: their number, and the cluster that they run on. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtla.errors import UsageError, named
from trtla.settings.fields import check, option

_RANGE = re.compile(r"([1-9][0-9]{0,3}):([1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Settings of commands with `--ray`."""

    ray: bool = option(False, "Run the model in replicas, processes of their own, with Ray.")
    replicas: int | None = option(
        None, "Replicas of the model.", least=1, most=1000, shown="2 with --ray"
    )
    autoscale: str | None = option(
        None,
        "Fewest and most replicas, as many as the requests need.",
        metavar="MIN:MAX",
        shown="off",
    )
    ray_address: str | None = option(
        None,
        "Ray cluster to run on, as ray.init takes it.",
        metavar="ADDRESS",
        shown="RAY_ADDRESS, else one of its own on this machine",
    )

    def __post_init__(self) -> None:
        check(self)
        for name in ("replicas", "autoscale", "ray_address"):
            if getattr(self, name) is not None and not self.ray:
                raise UsageError(f"{named(name)} is for {named('ray')}", f"add {named('ray')}")
        if self.replicas is not None and self.autoscale is not None:
            both = f"{named('replicas')} and {named('autoscale')}"
            raise UsageError(f"{both} exclude each other", "give one of them")
        _ = self.range  # refuses a range that is none

    @property
    def range(self) -> tuple[int, int]:
        """Fewest and most replicas."""
        if self.autoscale is None:
            number = self.replicas or 2
            return number, number
        match = _RANGE.fullmatch(self.autoscale)
        if match is None or int(match[1]) > int(match[2]):
            raise UsageError(
                f"autoscale is {self.autoscale!r}",
                f'{named("autoscale")} must be MIN:MAX, such as 1:4, and in quotes in YAML: "1:4"',
            )
        return int(match[1]), int(match[2])
