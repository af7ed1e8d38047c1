"""How far a prompt travels through `run` and `serve`: what carries it, as `support/trip` counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import httpx
import pytest

from tests.support.command import ROOT
from tests.support.compiled import needs_compiler
from tests.support.served import SHIPPED, server_process
from trtla.api.generation import answers_to
from trtla.api.protocol import ChatBody, CompletionBody
from trtla.llm.llm import LLM
from trtla.llm.prompt import PromptRequest
from trtla.llm.templates import ChatTemplate
from trtla.llm.text import Tokenizer
from trtla.runtime.limits import ExecutorLimits
from trtla.settings.sampling import SamplingParams

PROMPT = "def area(self"
MOST_FILES, MOST_RECORDS = 40, 13
SERVED = {"completions": (38, 21, 9), "chat/completions": (44, 25, 11),
          "responses": (48, 29, 11)}  # fmt: skip
"""Through a server, from the body on: files in all, those outside `runtime/`, records."""


@pytest.fixture(scope="module")
def done():
    with LLM(SHIPPED) as llm:
        (done,) = llm.generate(PROMPT, SamplingParams(max_output_len=24))
    return done


@pytest.fixture(scope="module")
def known(done):
    return json.dumps([PROMPT, done.input_ids, done.text, done.token_ids])


@needs_compiler
def test_a_prompt_passes_few_files_in_few_records(done, known, tmp_path):
    trip = ["-m", "tests.support.trip", str(tmp_path / "trip"), known]
    line = [*trip, "run", "-m", str(SHIPPED), "-p", PROMPT, "-n", "24"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, *line], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    assert done.text.strip()[:20] in ran.stdout
    files, records = json.loads((tmp_path / "trip").read_text())
    assert {"cli/run/run.py", "llm/prompt.py", "runtime/loop/step.py"} <= files.keys()
    assert {"PromptRequest", "Request", "Sequence", "Completion"} <= set(records)
    assert len(files) <= MOST_FILES, sorted(files)
    assert len(records) <= MOST_RECORDS, records


@needs_compiler
@pytest.mark.parametrize("route", SERVED)
def test_a_prompt_passes_few_files_through_a_server(route, tmp_path, monkeypatch):
    """From the body to the answer; the command's flags, which hold settings too, open the model."""
    question = [{"role": "user", "content": PROMPT}]
    prompt, field = (PROMPT, "prompt") if route == "completions" else (question, "messages")
    with LLM(SHIPPED) as llm:
        (done,) = llm.generate(prompt, SamplingParams(max_output_len=12))
    known = json.dumps([PROMPT, done.input_ids, done.text, done.token_ids])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(ROOT)
    trip = ("-m", "tests.support.trip", tmp_path / "trip", known)
    with server_process(*trip, "serve", SHIPPED) as (process, address):
        body = {field: prompt, "max_tokens": 12, "temperature": 0}
        if route == "responses":
            body = {"input": prompt, "max_output_tokens": 12, "temperature": 0}
        answer = httpx.post(f"{address}/v1/{route}", json=body, timeout=120)
        assert done.text in answer.text.encode().decode("unicode_escape")
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait(120) == 0, said
    files, records = json.loads((tmp_path / "trip").read_text())
    files = {file for file in files if not file.startswith("cli/")}
    records = set(records) - {"ServeFlags"}
    assert {"serve/app.py", "api/generation.py", "llm/prompt.py", "runtime/loop/step.py"} <= files
    assert {"PromptRequest", "Request", "Sequence", "Completion"} <= records
    most_files, most_outside, most_records = SERVED[route]
    assert len(files) <= most_files, sorted(files)
    outside = sorted(file for file in files if not file.startswith("runtime/"))
    assert len(outside) <= most_outside, outside
    assert len(records) <= most_records, records


def test_a_prompt_is_encoded_once_and_a_conversation_rendered_once(monkeypatch):
    done = {"encode": 0, "render": 0}

    def counted(kind, name):
        do = getattr(kind, name)

        def noted(*args, **more):
            done[name] += 1
            return do(*args, **more)

        monkeypatch.setattr(kind, name, noted)

    said = [{"role": ("user", "assistant")[i % 2], "content": f"hello {i}"} for i in range(3)]
    question, talk = said[:1], [{"role": "system", "content": "Be brief."}, *said]
    with LLM(SHIPPED) as llm:
        counted(Tokenizer, "encode")
        answers_to(CompletionBody(prompt=[PROMPT, "def"], max_tokens=2), llm)
        assert done == {"encode": 2, "render": 0}
        llm.encode(question)  # the first conversation shows what the template takes
        counted(ChatTemplate, "render")
        for messages in (question, talk):
            done.update(encode=0, render=0)
            body = {"messages": messages, "max_tokens": 2}
            answers_to(ChatBody.model_validate(body), llm)
            assert done == {"encode": 1, "render": 1}


def test_a_request_is_made_once_and_checked_once(monkeypatch):
    checked, check = [], ExecutorLimits.check

    def noted(limits, request):
        checked.append(request)
        check(limits, request)

    monkeypatch.setattr(ExecutorLimits, "check", noted)
    few = SamplingParams(max_output_len=2)
    with LLM(SHIPPED) as llm:
        uses = (
            lambda: llm.generate(PROMPT, few),
            lambda: llm.beam_search(PROMPT, max_output_len=2),
            lambda: llm.log_probs(PROMPT, (1, 2)),
        )
        for use in uses:
            use()
        assert len(checked) == len(uses)
        (answer,) = llm.answers_to([PromptRequest("it", PROMPT, few)])
        assert answer.request is checked[-1]
