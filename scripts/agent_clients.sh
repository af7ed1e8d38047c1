#!/usr/bin/env bash
# Agents' own clients against /v1/responses with the model that comes with trtla: OpenAI's agents SDK takes three
# turns with function tools, Codex answers one prompt. Prints what they exchanged.
#   scripts/agent_clients.sh     takes minutes: a prompt of Codex has 15,000 tokens
# The first time it makes .venv, as all scripts do, and .venv-agents (300 MB); Codex needs npm.
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
setup_venv dev

PACKAGES='openai-agents==0.24.0'
CODEX='@openai/codex@0.171.0'
if [ "$(cat .venv-agents/trtla-made 2>/dev/null)" != "$PACKAGES $CODEX" ]; then
    "${PYTHON:-python3}" -m venv .venv-agents
    setup_step "installing $PACKAGES into .venv-agents (once)" .venv-agents/setup.log \
        .venv-agents/bin/python -m pip --disable-pip-version-check install --progress-bar off "$PACKAGES"
    if command -v npm >/dev/null 2>&1; then
        setup_step "installing $CODEX there (once)" .venv-agents/npm.log \
            npm install --prefix .venv-agents --no-audit --no-fund "$CODEX"
    else
        echo "note: Codex is left out; install npm, and remove .venv-agents, to try it" >&2
    fi
    printf '%s' "$PACKAGES $CODEX" >.venv-agents/trtla-made
fi
exec .venv/bin/python scripts/agent_clients.py .venv-agents
