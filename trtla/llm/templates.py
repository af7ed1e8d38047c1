"""Chat templates, rendered here or in a process of their own: a model brings them as programs.

The started process reads the template and forks one that renders. That one ends itself when a
template takes too long or too much memory, and is forked again without repeating the imports.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any

from trtla.errors import RendererLost
from trtla.settings.messages import NO_VARIABLES, Variables

if TYPE_CHECKING:
    from jinja2 import Template

_MOST_BYTES = 1 << 30  # of memory, for one conversation
_MOST_TEXT = 1 << 25  # characters; longer than any context
_LENGTH = 8  # bytes of the length before a message
_STARTING_S = 60.0  # at most, until a process is ready for conversations
_LATE_S = 1.0  # beyond a conversation's time, which the process ends itself
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
"""Tokens that are empty if the model lacks them."""
_AGAIN = 3  # the exit code of a renderer that wants a successor


@dataclass(frozen=True)
class ChatTemplate:
    """A model's template, and the special tokens that it may name."""

    template: Any
    """Its text, or texts by name: `default`, and `tool_use` where tools are given."""
    tokens: dict[str, str]
    """By name, such as `bos_token`."""
    _known: dict[str, Template] = field(default_factory=dict, repr=False, compare=False)

    def render(
        self,
        messages: list[Any],
        add_generation_prompt: bool = True,
        variables: Variables = NO_VARIABLES,
    ) -> str:
        """Render messages; raises any error of the template.

        As in transformers, keys with a value of None are omitted, and thoughts have all their
        names.

        Args:
            add_generation_prompt: end with the beginning of the next answer.
            variables: further ones for the template, such as `tools`.
        """
        shown = [
            _with_thoughts({k: v for k, v in message.items() if v is not None})
            for message in messages
        ]
        return self._compiled(bool(variables.get("tools"))).render(
            messages=shown,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{"tools": None, **dict.fromkeys(_ROLES, ""), **self.tokens, **variables},
        )

    def parse(self) -> None:
        """Raise jinja2's error for an invalid template; nothing in it is computed yet."""
        from trtla.llm.jinja_environment import environment

        for tools in (False, True):
            environment().parse(self.text(tools))

    def text(self, tools: bool = False) -> str:
        """The template of messages with or without tools; empty where several have other names."""
        texts = self.template if isinstance(self.template, dict) else {"default": self.template}
        default = texts.get("default", "")
        return str(texts.get("tool_use", default) if tools else default)

    def _compiled(self, tools: bool) -> Template:
        from trtla.llm.jinja_environment import environment

        text = self.text(tools)
        if text not in self._known:
            self._known[text] = environment().from_string(text)
        return self._known[text]


def _with_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    names = ("reasoning_content", "thinking", "reasoning")
    thoughts = next((message[name] for name in names if name in message), None)
    if thoughts is None:
        return message
    return {"thinking": thoughts, **message, "reasoning_content": thoughts}


class TemplateFailed(Exception):
    """A template raised the error in the text."""


class TemplateStopped(TemplateFailed):
    """A template took too much time or memory, or made too long a text."""


class TemplateProcess:
    """One template, for any number of threads.

    Args:
        template: called when the process starts, at the latest when it is first needed.
        most_s: seconds for a conversation.
    """

    def __init__(self, template: Callable[[], ChatTemplate], most_s: float) -> None:
        self._template, self._most_s = template, most_s
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def start(self) -> None:
        with self._lock, suppress(EOFError, OSError):  # the next use starts another
            self._started()

    def render(self, messages: list[Any], add_generation_prompt: bool, variables: Variables) -> str:
        """Render a conversation; if the process is lost meanwhile, a new one renders it."""
        arguments = [messages, add_generation_prompt, dict(variables)]
        with self._lock:
            answer = self._answer(arguments) or self._answer(arguments)
        if answer is None:
            raise RendererLost(
                "the process that fills in the chat template was lost, twice", "ask again later"
            )
        if "error" in answer:
            raise (TemplateStopped if answer["stopped"] else TemplateFailed)(answer["error"])
        return str(answer["text"])

    def close(self) -> None:
        """End the process permanently; waiting callers get an error."""
        self._is_closed, process = True, self._process
        if process is not None:
            _kill(process)
        with self._lock:
            self._end()

    def _answer(self, arguments: list[Any]) -> dict[str, Any] | None:
        try:
            return self._exchange(self._started(), arguments, self._most_s + _LATE_S)
        except (EOFError, OSError):
            self._end()
            return None

    def _exchange(
        self, process: subprocess.Popen[bytes], data: list[Any], most_s: float
    ) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        timer = Timer(most_s, _kill, [process])
        timer.daemon = True
        timer.start()
        try:
            _write(process.stdin.fileno(), data)
            answer: dict[str, Any] = _read(process.stdout.fileno())
            return answer
        finally:
            timer.cancel()
            timer.join()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise RendererLost("the model is closed", "open it again")
        if self._process is not None and self._process.poll() is not None:
            self._end()  # with the renderer, which may run on alone
        if self._process is None:
            path = f"import sys; sys.path[:] = {sys.path!r}"
            process = subprocess.Popen(
                [sys.executable, "-c", f"{path}; from {__name__} import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # a terminal's Ctrl-C is not for it
            )
            self._process = process
            try:
                template = self._template()
                first = [template.template, template.tokens, self._most_s]
                self._exchange(process, first, _STARTING_S)
            except BaseException:
                self._end()
                raise
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _kill(process)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with the renderer


def main() -> None:
    """Fork renderers as long as conversations come."""
    text, tokens, seconds = _read(0)
    template = ChatTemplate(text, tokens)
    from trtla.llm.jinja_environment import environment

    environment()  # each renderer compiles the template, within its limits of time and memory
    _write(1, {})  # it is ready
    while True:
        child = os.fork()
        if not child:
            _render_all(template, seconds)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == -signal.SIGALRM:  # armed only during rendering
            _write(1, {"error": f"it took more than {seconds:g} s", "stopped": True})
        elif status != _AGAIN:
            return


def _render_all(template: ChatTemplate, seconds: float) -> None:
    """Render conversations until there are no more; ends this process."""
    code = 1
    try:
        _limit_memory()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        while code != _AGAIN:
            arguments = _read(0)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            answer = _rendered(template, *arguments)
            signal.setitimer(signal.ITIMER_REAL, 0)
            code = _AGAIN if answer.pop("full", False) else code
            _write(1, answer)
    except (EOFError, OSError):
        code = 0
    finally:
        os._exit(code)


def _rendered(
    template: ChatTemplate,
    messages: list[Any],
    add_generation_prompt: bool,
    variables: Variables,
) -> dict[str, Any]:
    try:
        text = template.render(messages, add_generation_prompt, variables)
        text.encode()
        if len(text) > _MOST_TEXT:
            return {"error": f"it makes a text of {len(text)} characters", "stopped": True}
        return {"text": text}
    except MemoryError:
        return {"error": "it takes too much memory", "stopped": True, "full": True}
    except Exception as error:  # jinja2's, or any other
        return {"error": str(error), "stopped": False}


def _limit_memory() -> None:
    with suppress(FileNotFoundError), open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + _MOST_BYTES,) * 2)


def _write(pipe: int, data: Any) -> None:
    text = json.dumps(data).encode()
    left = memoryview(len(text).to_bytes(_LENGTH, "big") + text)
    while left:
        left = left[os.write(pipe, left) :]


def _read(pipe: int) -> Any:
    """Read a message; raises `EOFError` if the other side has ended."""
    return json.loads(_bytes(pipe, int.from_bytes(_bytes(pipe, _LENGTH), "big")))


def _bytes(pipe: int, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = os.read(pipe, min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
