"""The base of request bodies: no conversions, no unknown fields."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, PrivateAttr, model_validator

Object = dict[str, Any]
SentT = TypeVar("SentT", bound="AsSent")


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


class AsSent(Strict):
    """A model that keeps the object that it was read from: chat templates see that one."""

    _sent: Object = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls: type[SentT], data: Any, handler: ModelWrapValidatorHandler[SentT]) -> SentT:
        model = handler(data)
        if isinstance(data, dict):
            model._sent = data
        return model

    @property
    def sent(self) -> Object:
        """The keys and values as the client sent them, without what its library adds.

        Where only some keys are known, a null is as good as none.
        """
        is_closed = self.model_config["extra"] == "forbid"
        return {
            key: value
            for key, value in self._sent.items()
            if key not in self.by_client and not (is_closed and value is None)
        }
