"""The base of request bodies: no conversions, no unknown fields."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

Object = dict[str, Any]


def _equal(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


class Strict(BaseModel):
    """A model without type conversions, infinite numbers and unknown fields."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Values without effect of unsupported fields, which are accepted."""
    labels: ClassVar[tuple[str, ...]] = ()
    """Fields with texts that are ignored."""
    by_client: ClassVar[tuple[str, ...]] = ()
    """Fields that OpenAI's client adds to an answer; they are ignored where it is sent back."""

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept: dict[str, Any] = {}
        refused = False
        for name, value in data.items():
            unknown = name not in cls.model_fields
            if unknown and refused:  # the first one is enough
                continue
            if cls._requests(name, value):
                kept[name] = value
                refused |= unknown
        return kept

    @classmethod
    def _requests(cls, name: str, value: Any) -> bool:
        if value is None or name in cls.by_client:
            return False
        if name in cls.labels:
            return not isinstance(value, str)
        return not any(_equal(value, neutral) for neutral in cls.neutral.get(name, ()))
