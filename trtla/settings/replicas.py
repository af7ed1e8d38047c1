"""How a model is spread over replicas: how many, and on which Ray cluster. Torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtla.errors import UsageError
from trtla.settings.fields import check, option

_RANGE = re.compile(r"([1-9][0-9]{0,3}):([1-9][0-9]{0,3})")
_USUAL = 2
_MOST = 1000


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """What a command is given with `--ray`.

    Raises:
        UsageError: a value is out of its range, or does not fit the others.
    """

    ray: bool = option(False, "Run the model in replicas, processes of their own, with Ray.")
    replicas: int | None = option(
        None, "Replicas of the model.", least=1, most=_MOST, shown=f"{_USUAL} with --ray"
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
                raise UsageError(f"--{name.replace('_', '-')} is for --ray", "add --ray")
        if self.replicas is not None and self.autoscale is not None:
            raise UsageError("--replicas and --autoscale exclude each other", "give one of them")
        least, most = self.range
        if least > most:
            raise self._no_range()

    @property
    def range(self) -> tuple[int, int]:
        """Fewest and most replicas."""
        if self.autoscale is None:
            number = self.replicas or _USUAL
            return number, number
        found = _RANGE.fullmatch(self.autoscale)
        if found is None:
            raise self._no_range()
        return int(found[1]), int(found[2])

    def _no_range(self) -> UsageError:
        return UsageError(
            f"autoscale is {self.autoscale!r}",
            '--autoscale must be MIN:MAX, such as 1:4, and in quotes in YAML: "1:4"',
        )
