"""Hints for fields of /v1/responses that come to the two other routes."""

from __future__ import annotations

_ALONE = ("background", "client_metadata", "include", "max_tool_calls", "truncation")
_OF_RESPONSES = dict.fromkeys(_ALONE, "it is a field of /v1/responses")
_SEND_ALL = "send the earlier messages too, in messages"
IN_CHATS = {
    **_OF_RESPONSES,
    "conversation": _SEND_ALL,
    "input": "use messages",
    "instructions": "use a message of the role system",
    "max_output_tokens": "use max_completion_tokens",
    "previous_response_id": _SEND_ALL,
    "text": "use response_format",
}
IN_COMPLETIONS = {**_OF_RESPONSES, "input": "use prompt", "max_output_tokens": "use max_tokens"}
