"""The grammar of answers that may call tools."""

from __future__ import annotations

from trtla.api.errors import ApiError
from trtla.api.protocol import ChatBody
from trtla.api.reasoning import ReasoningSplitter, State, marks_reasoning
from trtla.api.tool_formats import known_format
from trtla.api.tools import NamedTool, callable_tools
from trtla.llm.prompt import RequestMaker
from trtla.settings.grammar import Grammar
from trtla.settings.messages import Messages, check_messages


def tool_grammar(
    llm: RequestMaker, body: ChatBody, messages: Messages, answer: Grammar | None
) -> Grammar | None:
    """Make the grammar of a body with tools; None: the executor takes none, and none is needed.

    Args:
        answer: the grammar that the body asks for, if any: an answer has calls or follows it.
    """
    if answer is not None and answer.kind not in ("json_schema", "json_object"):
        raise ApiError(
            400, "tools exclude a grammar that is no JSON schema; omit one of them", "tools"
        )
    must = body.tool_choice not in (None, "auto")
    format_, tokenizer = known_format(llm), llm.tokenizer
    if answer is not None and format_.leads and not must:
        raise ApiError(
            400,
            "the model's calls begin as JSON does: tools exclude a schema of the answer; omit one",
            "tools",
        )
    assert tokenizer is not None
    if llm.limits.fixed_triples:
        if must:
            raise ApiError(
                400,
                "tool_choice has a call forced by a grammar, which engines of TensorRT-LLM do not "
                "apply here; use auto",
                "tool_choice",
            )
        return answer

    def control(name: str) -> int | None:
        token = tokenizer.token_id(name)
        return token if token in tokenizer.control_ids else None

    return format_.grammar(
        [tool.function for tool in callable_tools(body.tools, body.tool_choice)],
        state=thoughts(llm, body, messages),
        must=must,
        several=body.parallel_tool_calls and not isinstance(body.tool_choice, NamedTool),
        control=control,
        answer=answer,
    )


def thoughts(llm: RequestMaker, body: ChatBody, messages: Messages) -> State:
    """The state of the thoughts when the answer begins, by the end of the prompt."""
    tokenizer, tools = llm.tokenizer, bool(body.offered)
    if tokenizer is None or not marks_reasoning(tokenizer.template_text(tools)):
        return "answering"
    prompt = tokenizer.chat_text(check_messages(messages, "the conversation"), body.rendering)
    return ReasoningSplitter(prompt, body.begun_text).state
