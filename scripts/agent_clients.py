#!/usr/bin/env python3
"""Agents' own clients against a server in this process; scripts/agent_clients.sh installs them.

    .venv/bin/python scripts/agent_clients.py FOLDER

FOLDER is an environment with openai-agents, and with Codex in node_modules. The model is the
shipped one, whose texts mean nothing: a line of it ends an answer, and calls are forced.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.chat_templates import (  # noqa: E402
    HERMES_TOOLS,
    QWEN_CODER_TOOLS,
    with_template,
)
from tests.support.served import SHIPPED, Served, serving  # noqa: E402
from trtla import LLM  # noqa: E402

CONTEXT = 16_384
"""Codex's prompt takes some 10,000 tokens."""
CONFIG = """model = "tiny"
model_provider = "trtla"
model_context_window = {context}
web_search = "disabled"

[model_providers.trtla]
name = "trtla"
base_url = "{api}"
wire_api = "responses"
"""


def model(folder: Path, template: str) -> Path:
    """The shipped model with this template and a long context."""
    made = with_template(SHIPPED, folder, template)
    config = made / "config.json"
    said = json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT}
    config.write_text(json.dumps(said))
    return made


def agents_sdk(served: Served, clients: Path) -> None:
    """Three turns of OpenAI's agents SDK."""
    script = Path(__file__).with_name("agents_sdk.py")
    subprocess.run([clients / "bin" / "python", script, served.api, "tiny"], check=True)


def codex(served: Served, program: Path, home: Path) -> None:
    """One prompt to Codex, whose answer ends with its first line at the latest."""
    llm = served.service.model.llm
    llm.end_ids |= frozenset(llm.tokenizer.encode("\n", special=False)[-1:])
    (home / "config.toml").write_text(CONFIG.format(context=CONTEXT, api=served.api))
    ran = subprocess.run(
        [program, "exec", "--skip-git-repo-check", "--json", "Say hello."],
        cwd=home,
        env={**os.environ, "CODEX_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    print(ran.stdout)
    kinds = [json.loads(line)["type"] for line in ran.stdout.splitlines()]
    if ran.returncode or "turn.completed" not in kinds:
        raise SystemExit("Codex did not complete its turn")


def main() -> None:
    """Run the clients that are there, one after another."""
    clients = Path(sys.argv[1]).absolute()
    program = clients / "node_modules" / ".bin" / "codex"
    with tempfile.TemporaryDirectory() as kept:
        home = Path(kept) / "home"
        home.mkdir()
        for name, template in (("tags", QWEN_CODER_TOOLS), ("json", HERMES_TOOLS)):
            folder = model(Path(kept) / name, template)
            how = {"max_batch_size": 2, "max_seq_len": CONTEXT, "block_reuse": True}
            with serving(partial(LLM, folder, **how)) as served:
                served.service.model.llm.force_greedy = True  # clients send no seed
                print(f"calls in {name}: three turns of the agents SDK", flush=True)
                agents_sdk(served, clients)
                if program.exists():
                    print(f"calls in {name}: one prompt to Codex", flush=True)
                    codex(served, program, home)


if __name__ == "__main__":
    main()
