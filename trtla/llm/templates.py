"""Chat templates, rendered here or in a process of their own: a model brings them as programs."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from trtla.errors import RendererLost, UsageError, named
from trtla.settings.messages import NO_VARIABLES, Variables

_MOST_BYTES = 1 << 30  # of the process's memory
_MOST_TEXT = 1 << 24  # characters; longer than any context
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
"""Tokens that are empty if the model lacks them."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A model's template, and the special tokens that it may name."""

    template: Any
    """Its text, or texts by name: `default`, and `tool_use` where tools are given."""
    tokens: dict[str, str]
    """By name, such as `bos_token`."""

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
        from trtla.llm.jinja_environment import compiled

        shown = [{k: v for k, v in message.items() if v is not None} for message in messages]
        return compiled(self.text(bool(variables.get("tools")))).render(
            messages=list(map(_with_thoughts, shown)),
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{"tools": None, **dict.fromkeys(_ROLES, ""), **self.tokens, **variables},
        )

    def text(self, tools: bool = False) -> str:
        """The template of messages with or without tools; empty where several have other names."""
        texts = self.template if isinstance(self.template, dict) else {"default": self.template}
        default = texts.get("default", "")
        return str(texts.get("tool_use", default) if tools else default)


def _with_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    names = ("reasoning_content", "thinking", "reasoning")
    thoughts = next((message[name] for name in names if name in message), None)
    if thoughts is None:
        return message
    return {"thinking": thoughts, **message, "reasoning_content": thoughts}


class TemplateProcess:
    """Renders one template in a process with limits, for any number of threads.

    A process that exceeds a limit ends. The next conversation starts another one.

    Args:
        most_s: seconds for a conversation.
    """

    def __init__(self, template: ChatTemplate, most_s: float) -> None:
        self._template, self._most_s = template, most_s
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, messages: list[Any], add_generation_prompt: bool, variables: Variables) -> str:
        """Render as `ChatTemplate.render` does."""
        known, arguments = self._template, (messages, add_generation_prompt, dict(variables))
        line = json.dumps([known.template, known.tokens, *arguments]).encode() + b"\n"
        with self._lock:
            answer = self._answer(line)
        if "stopped" in answer:
            raise UsageError(
                f"the model's chat template fails: {answer['stopped']}",
                f"shorten the messages, or start with another {named('chat_template')}",
            )
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["text"]

    def close(self) -> None:
        """End the process; waiting callers get an error."""
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _answer(self, line: bytes) -> dict[str, str]:
        process, text = self._started(), b""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # it has ended
            process.stdin.write(line)
            process.stdin.flush()
            text = process.stdout.readline()
        if text.endswith(b"\n"):
            return dict(json.loads(text))
        if self._end() != -signal.SIGALRM:
            raise RendererLost(
                "the process that fills in the chat template was lost", "ask again later"
            )
        return {"stopped": f"it took more than {self._most_s:g} s"}

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main"
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"{code}; main({self._most_s})"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is not for it
            )
        return self._process

    def _end(self) -> int | None:
        """End the process, if there is one, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        with suppress(OSError), process:  # closes the pipes and waits
            pass
        return process.returncode


def main(seconds: float) -> None:
    """Render the conversation of each line, within limits of time and memory."""
    with suppress(ValueError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it ends the process, whatever that does
    for line in sys.stdin.buffer:
        template, tokens, *arguments = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        answer = _rendered(ChatTemplate(template, tokens), arguments)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(answer), flush=True)


def _rendered(template: ChatTemplate, arguments: list[Any]) -> dict[str, str]:
    try:
        text = template.render(*arguments)
    except MemoryError:
        return {"stopped": "it takes too much memory"}
    except Exception as error:  # jinja2's, or any other
        return {"error": str(error)}
    too_long = {"stopped": f"it makes a text of {len(text)} characters"}
    return {"text": text} if len(text) <= _MOST_TEXT else too_long
