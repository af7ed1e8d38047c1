"""Which part of a model a rank has; TensorRT-LLM mapping.py.

Unknown keys are a TypeError: a config.json with keys of another release does not load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._standin import StandinUndefinedBehaviour
from ._version import at_least

_DEFAULTS: dict[str, Any] = {
    "world_size": 1,
    "rank": 0,
    "gpus_per_node": 8,
    "cp_size": 1,
    "tp_size": 1,
    "pp_size": 1,
    "moe_tp_size": -1,
    "moe_cluster_size": -1,
    "moe_ep_size": -1,
    "attn_tp_size": -1,
    "attn_cp_size": -1,
    **({"cp_config": {}} if at_least(1, 1) else {"auto_parallel": False}),
}
_POSITIONAL = ("world_size", "rank", "gpus_per_node")


class Mapping:
    def __init__(self, *args: int, **kwargs: Any) -> None:
        given = {**dict(zip(_POSITIONAL, args, strict=False)), **kwargs}
        for name in given:
            if name not in _DEFAULTS:
                raise TypeError(f"Mapping.__init__() got an unexpected keyword argument '{name}'")
        self.__dict__.update({**_DEFAULTS, **given})
        for name, instead in (  # -1 means no experts
            ("moe_cluster_size", 1),
            ("moe_tp_size", self.tp_size),
            ("moe_ep_size", 1),
            ("attn_tp_size", self.tp_size * self.cp_size),
            ("attn_cp_size", 1),
        ):
            if self.__dict__[name] == -1:
                self.__dict__[name] = instead
        self._check()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def _check(self) -> None:
        parts = (self.tp_size, self.pp_size, self.cp_size)
        if parts[0] * parts[1] * parts[2] != self.world_size:
            raise ValueError(
                "world_size must equal to tp_size * pp_size * cp_size, but got "
                f"{self.world_size} != {parts[0]} * {parts[1]} * {parts[2]}."
            )
        if not isinstance(self.rank, int) or not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"Rank should be an integer between 0 and {self.world_size - 1}, "
                f"but got {self.rank}."
            )

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp_size

    @property
    def pp_rank(self) -> int:
        return self.rank // (self.tp_size * self.cp_size)

    def is_first_pp_rank(self) -> bool:
        return self.pp_rank == 0

    def is_last_pp_rank(self) -> bool:
        return self.pp_rank == self.pp_size - 1

    def pp_layers(self, num_layers: int) -> list[int]:
        if num_layers % self.pp_size:
            raise StandinUndefinedBehaviour(
                f"{num_layers} layers on pp_size {self.pp_size}: releases differ in who gets the "
                "rest, older ones lose it"
            )
        count = num_layers // self.pp_size
        return list(range(self.pp_rank * count, (self.pp_rank + 1) * count))

    @classmethod
    def from_dict(cls, mapping: dict[str, Any]) -> Mapping:
        return cls(**mapping)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _DEFAULTS}
