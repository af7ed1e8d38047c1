"""llmapi: the configuration that a user-provided drafter is given in. From 1.0 on."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ._version import at_least

if at_least(1, 0):

    class UserProvidedDecodingConfig(BaseModel):
        """`speculative_config` of the LLM class; unknown names are errors."""

        model_config = ConfigDict(extra="forbid")

        decoding_type: Literal["User_Provided"] = "User_Provided"
        max_draft_len: int = Field(gt=0)
        max_total_draft_tokens: int | None = None
        drafter: object
        resource_manager: object = None

        @model_validator(mode="after")
        def set_max_total_draft_tokens(self) -> UserProvidedDecodingConfig:
            self.max_total_draft_tokens = self.max_draft_len
            return self
