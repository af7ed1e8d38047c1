"""Log probabilities in the two forms that OpenAI's API has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trtla.runtime.request import TokenLogProb

Json = dict[str, Any]
Spell = Callable[[int], bytes]
"""The bytes that a token stands for."""


def chat_logprobs(tokens: Sequence[TokenLogProb], spell: Spell) -> Json:
    """Of a chat: a list of tokens, each with its rivals."""

    def one(token: int, logprob: float) -> Json:
        data = spell(token)
        return {"token": _text(data), "logprob": logprob, "bytes": list(data)}

    content = [
        {**one(token.token, token.logprob), "top_logprobs": [one(*rival) for rival in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


@dataclass(frozen=True, slots=True)
class Listed:
    """Log probabilities of a completion, and where its next token begins."""

    json: Json
    end: int


def completion_logprobs(tokens: Sequence[TokenLogProb], spell: Spell, start: int) -> Listed:
    """Of a completion: lists side by side; `start` is the first token's place in the text."""
    texts = [_text(spell(token.token)) for token in tokens]
    offsets = [start]
    for text in texts:
        offsets.append(offsets[-1] + len(text))
    tops = [
        {_text(spell(token)): logprob for token, logprob in reversed(one.top)} for one in tokens
    ]
    listed = {
        "tokens": texts,
        "token_logprobs": [one.logprob for one in tokens],
        "top_logprobs": [dict(reversed(one.items())) for one in tops],
        "text_offset": offsets[:-1],
    }
    return Listed(listed, offsets[-1])


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
