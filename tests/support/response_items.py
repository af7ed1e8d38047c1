"""The output of a response to texts that a test chooses."""

from __future__ import annotations

import json
from types import SimpleNamespace

from trtla.api.answers import Labels
from trtla.api.generation import Generation
from trtla.api.responses.answer import ResponseWriter, response_answers
from trtla.api.responses.body import read_response


def items(llm, chunks, asked):
    """The output of a response that comes in these texts, each with its tokens."""
    asked = read_response(json.dumps(asked).encode())
    (answer,) = response_answers(asked.chat, llm)
    labels = Labels("key", 0, "tiny")
    writer = ResponseWriter(asked, asked.chat, labels, Generation([answer]), llm)
    done = SimpleNamespace(finish_reason="end_id")
    for number, (text, tokens) in enumerate(chunks, 1):
        list(writer._grow(text, tokens, done if number == len(chunks) else None))
    return writer._output.items
