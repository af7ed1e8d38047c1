"""A request of OpenAI's API from its checked body to its finished choices.

Everything is checked against the engine before anything is queued.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from trtla.api.declared import DRAFTING
from trtla.api.errors import ApiError, refused, too_late
from trtla.api.grammars import FIELDS as GRAMMARS
from trtla.api.grammars import grammar_of
from trtla.api.harmony import SIGNS, speaks_harmony
from trtla.api.harmony_grammars import behind_messages
from trtla.api.protocol import Body, ChatBody, CompletionBody, Content, Message
from trtla.api.reasoning import BEGIN, END, marks_reasoning
from trtla.api.tool_formats import tool_format
from trtla.api.tool_grammars import control_token, thoughts, tool_grammar
from trtla.errors import RendererLost, TrtlaError, UsageError
from trtla.llm.answer import Answer, Chunk, Completion, chunk_of
from trtla.llm.prompt import Prompt, PromptRequest, RequestMaker
from trtla.runtime.request import Output
from trtla.settings.drafting import DrafterSettings, parse_drafter
from trtla.settings.lookahead import Lookahead, LookaheadConfig
from trtla.settings.messages import joined, text_part
from trtla.settings.sampling import BEYOND, USUAL_LEN, SamplingParams, UsualLength

_SEEDS = 2**63
_LONGEST_TOKEN = 16  # characters, with few exceptions
_COMPLETION_LEN = UsualLength(16)
"""Output limit of /v1/completions for requests without one; OpenAI's default."""


class Generation:
    """The growing choices of one request.

    Args:
        answers: the empty choices; those of the first prompt first.
        started: when the request arrived, on the monotonic clock in seconds.
        timeout_s: for the report of a choice that timed out.
    """

    def __init__(
        self, answers: Sequence[Answer], started: float | None = None, timeout_s: float = 0.0
    ) -> None:
        self.answers = answers
        self.started = time.monotonic() if started is None else started
        self.first: float | None = None
        """The time when the first token arrived."""
        self.tokens = 0
        """Tokens written so far."""
        self.done: list[Completion] = []
        self._timeout_s = timeout_s
        self._growing = {answer.request.request_id: answer for answer in answers}

    @property
    def request_ids(self) -> tuple[int, ...]:
        """The ids of choices that have not ended."""
        return tuple(self._growing)

    @property
    def ended(self) -> bool:
        return not self._growing

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once per answer."""
        return sum(len(answer.request.given_ids) for answer in self.answers)

    def add(self, request_id: int, output: Output) -> Chunk:
        """Add an output to its choice."""
        try:
            chunk = chunk_of(self._growing, request_id, output)
        except TrtlaError as error:
            raise refused(error) from None
        if output.finish_reason == "timed_out":
            raise too_late(self._timeout_s)
        self.first = self.first or time.monotonic()
        self.tokens += len(output.new_tokens)
        if chunk.completion is not None:
            self.done.append(chunk.completion)
        return chunk


def answers_to(
    body: ChatBody | CompletionBody,
    llm: RequestMaker,
    timeout_s: float | None = None,
    space: int = 0,
) -> list[Answer]:
    """Create the choices that a body requests, those of the first prompt first.

    Args:
        timeout_s: limit of their time, including waiting.
        space: of their K/V blocks and drafts.
    """
    if isinstance(body, ChatBody):
        body = _switched(body, llm)
    seed = secrets.randbelow(_SEEDS) if body.seed is None else body.seed % _SEEDS
    how = (*_drafting(llm, body), _expected(llm, body))
    prompts = _prompts(llm, body)
    with _naming("chat_template_kwargs"):
        rendering = body.rendering
    sampling, most = _sampling(llm, body, timeout_s, seed), llm.limits.max_prompt_len
    shown = _shown(llm, body)
    answers: list[Answer] = []
    for index, (name, prompt) in enumerate(prompts):
        request = PromptRequest(
            name,
            prompt,
            sampling,
            *how,
            logprobs=body.tops,
            private=body.cache == "private",
            space=space,
            rendering=rendering,
            most=most,
            shown=shown,
        )
        with _naming("messages" if isinstance(body, ChatBody) else "prompt"):
            answers += llm.answers(index, request)
    for answer in answers:
        if body.prediction is not None and not answer.request.adaptive:
            raise ApiError(
                400, "prediction is a source of drafts for lookahead auto alone", "prediction"
            )
        if body.ignore_eos:
            answer.request = replace(answer.request, end_ids=frozenset())
    return answers


def _switched(body: ChatBody, llm: RequestMaker) -> ChatBody:
    """Return a chat with the effort of its thoughts, as the template's variables have it."""
    effort = body.reasoning_effort
    if effort is None or llm.tokenizer is None:
        return body
    template = llm.tokenizer.template_text(bool(body.offered))
    switches = {"enable_thinking": effort != "none", "reasoning_effort": effort}
    variables = {name: value for name, value in switches.items() if name in template}
    if not variables and (effort != "none" or marks_reasoning(template)):
        raise ApiError(
            400,
            f"reasoning_effort is {effort}, and the model's chat template has no switch for it; "
            "omit it",
            "reasoning_effort",
        )
    given = {**variables, **body.chat_template_kwargs}
    return body.model_copy(update={"chat_template_kwargs": given})


def _shown(llm: RequestMaker, body: ChatBody | CompletionBody) -> Mapping[str, str]:
    """The control tokens that the texts of an answer have, which its splitter looks for."""
    if not isinstance(body, ChatBody):
        return {}
    if speaks_harmony(llm.tokenizer, tools=bool(body.offered)):
        return SIGNS
    format_ = tool_format(llm) if body.offered else None
    return {format_.mark: format_.mark} if format_ else {}


def _prompts(llm: RequestMaker, body: ChatBody | CompletionBody) -> list[tuple[str, Prompt]]:
    if isinstance(body, CompletionBody):
        several = len(body.prompts) > 1
        return [
            (f"prompt {index}" if several else "the prompt", prompt)
            for index, prompt in enumerate(body.prompts)
        ]
    if llm.tokenizer is None or not llm.tokenizer.has_chat_template:
        raise ApiError(
            400, "this model has no chat template; POST texts to /v1/completions", "messages"
        )
    return [("the conversation", _conversation(body))]


def _conversation(body: ChatBody) -> list[dict[str, Any]]:
    return [_message(message) for message in body.messages]


def check_name(wanted: str | None, name: str, who: str) -> None:
    """Refuse a model name that is not served."""
    if wanted not in (None, name):
        raise ApiError(
            404,
            f"the model {str(wanted)[:100]!r} is not here; {who} has {name!r}",
            "model",
            "model_not_found",
        )


def _sampling(
    llm: RequestMaker, body: ChatBody | CompletionBody, timeout_s: float | None, seed: int
) -> SamplingParams:
    """Return the settings of a body's choices; a default length is cut to the context's."""
    if isinstance(body, ChatBody):
        length = body.length or USUAL_LEN
    else:
        length = body.max_tokens or _COMPLETION_LEN
    usual = 0.0 if llm.limits.greedy_only else 1.0
    sampled: dict[str, Any] = {
        "temperature": usual if body.temperature is None else body.temperature,
        "top_k": max(0, body.top_k),
        "top_p": body.top_p,
    }
    grammar = grammar_of({name: getattr(body, name) for name in GRAMMARS})
    if isinstance(body, ChatBody) and body.offered:
        with _naming("messages"):
            grammar = tool_grammar(llm, body, _conversation(body), grammar)
    elif isinstance(body, ChatBody) and grammar is not None:
        with _naming("messages"):
            state = thoughts(llm, body, _conversation(body))
        if speaks_harmony(llm.tokenizer, tools=False):
            grammar = behind_messages(grammar, state, control_token(llm))
        elif state != "answering":
            opened = BEGIN if state == "undecided" else ""
            grammar = replace(grammar, behind=END, opened=opened)
    if grammar is not None and body.ignore_eos:
        raise ApiError(
            400, "a text with a grammar ends where the grammar does; omit ignore_eos", "ignore_eos"
        )
    with _naming(None):
        return SamplingParams(
            max_output_len=length,
            seed=seed,
            stop=body.stop or (),
            stop_token_ids=body.stop_token_ids,
            n=body.n,
            **({} if llm.force_greedy else sampled),
            **{name: getattr(body, name) for name in BEYOND},
            grammar=grammar,
            allotted_time_ms=None if timeout_s is None else max(1, round(timeout_s * 1000)),
        )


def _drafting(llm: RequestMaker, body: Body) -> tuple[Lookahead | None, DrafterSettings | None]:
    lookahead = body.lookahead
    with _naming("lookahead"):
        triple = LookaheadConfig.parse(lookahead) if isinstance(lookahead, list) else lookahead
    settings = ((name, getattr(body, name)) for name in DRAFTING)
    changes = {name: value for name, value in settings if value is not None}
    for name in changes if llm.limits.fixed_triples else ():
        raise ApiError(400, f"{name} is for drafters that the engine has not; omit {name}", name)
    with _naming("drafter"):
        if body.drafter is not None:
            changes["drafter"] = parse_drafter(body.drafter)
        return triple, llm.limits.drafter.changed(changes) if changes else None


def _expected(llm: RequestMaker, body: Body) -> tuple[int, ...] | None:
    """Return ids of the predicted output, as far as an output can be long: once for all choices."""
    if body.prediction is None or llm.tokenizer is None:
        return None
    most = llm.limits.max_text_len
    text = joined(_plain(body.prediction.content))[: _LONGEST_TOKEN * most]
    with _naming("prediction"):
        return llm.tokenizer.encode(text, special=False)[:most] or None


def _message(message: Message) -> dict[str, Any]:
    """Return a message for the template, with the keys as they were sent."""
    known = Message.model_fields.keys()
    sent = {key: item for key, item in message.sent.items() if key in known}
    details = sent.pop("reasoning_details", ())
    if thoughts := "".join(str(one.get("text") or one.get("summary") or "") for one in details):
        sent = {"reasoning_content": thoughts, **sent}
    if message.tool_calls:
        sent["tool_calls"] = [call.sent for call in message.tool_calls]
    role = "system" if message.role == "developer" else message.role
    content = None if message.content is None else _plain(message.content)
    return {**sent, "role": role, "content": content}


def _plain(content: Content) -> str | list[dict[str, str]]:
    return content if isinstance(content, str) else [text_part(part.text) for part in content]


@contextmanager
def _naming(param: str | None) -> Iterator[None]:
    try:
        yield
    except (UsageError, RendererLost) as error:
        raise refused(error, param) from None
