"""How far a prompt travels: what carries it through `trtla run`, counted as `support/trip` says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.support.command import ROOT
from tests.support.compiled import needs_compiler
from tests.support.served import SHIPPED
from trtla.llm.llm import LLM
from trtla.llm.prompt import PromptRequest
from trtla.runtime.limits import ExecutorLimits
from trtla.settings.sampling import SamplingParams

PROMPT = "def area(self"
MOST_FILES, MOST_RECORDS = 40, 14


@needs_compiler
def test_a_prompt_passes_few_files_in_few_records():
    with LLM(SHIPPED) as llm:
        (done,) = llm.generate(PROMPT, SamplingParams(max_output_len=24))
    known = json.dumps([PROMPT, done.input_ids, done.text, done.token_ids])
    line = ["-m", "tests.support.trip", known, "run", "-m", str(SHIPPED), "-p", PROMPT, "-n", "24"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, *line], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    assert done.text.strip()[:20] in ran.stdout
    files, records = json.loads(ran.stderr.splitlines()[-1])
    assert {"cli/run/run.py", "llm/prompt.py", "runtime/loop/step.py"} <= files.keys()
    assert {"PromptRequest", "Request", "Sequence", "Completion"} <= set(records)
    assert len(files) <= MOST_FILES, sorted(files)
    assert len(records) <= MOST_RECORDS, records


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
