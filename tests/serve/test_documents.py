"""What is written about the server, in docs and configs, is what it does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from tests.support.tables import assert_tables
from trtla.api.declared import DRAFTING, RULES, SAMPLING
from trtla.api.protocol import LABELS, NEUTRAL, ChatBody, CompletionBody
from trtla.api.responses import body as responses
from trtla.runtime.stats import ExecutorStats
from trtla.serve.metrics import ServerMetrics

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "serving.md"
DOCS = PAGE.read_text()
FIELDS = {*ChatBody.model_fields, *CompletionBody.model_fields, *LABELS}


def test_settings_are_in_the_table_as_they_are_declared():
    absent = {name: f"{one.default:g}" for name, one in SAMPLING.items()}
    lines = (
        f"| `{name}` | {RULES[name]} | {absent.get(name, 'as started')} | {one.option.help} |"
        for name, one in (SAMPLING | DRAFTING).items()
    )
    head = "| setting | must be | if absent | |\n|---|---|---|---|\n"
    assert_tables(PAGE, [head + "\n".join(lines)])


def test_every_field_is_in_the_table():
    rows = re.findall(r"^\| (`[^|]+) \|", PAGE.read_text(), re.MULTILINE)
    named = {name.split(".")[0] for row in rows for name in re.findall(r"`(\w[\w.]*)`", row)}
    fields = FIELDS | responses.ResponseBody.model_fields.keys()
    assert named == fields, f"the tables of docs/serving.md differ by {named ^ fields}"


def test_no_field_is_both_supported_and_refused():
    assert FIELDS.isdisjoint(NEUTRAL), f"remove {FIELDS & NEUTRAL.keys()} from NEUTRAL"


def test_every_refused_field_is_there_with_what_asks_for_nothing():
    chats, of_responses = re.findall(r"Refused, unless.*?and every other\s+field", DOCS, re.DOTALL)
    for name, refused, values in (
        *((name, chats, values) for name, values in NEUTRAL.items()),
        *((name, of_responses, values) for name, values in responses.NEUTRAL.items()),
    ):
        shown = re.search(rf"`{name}` \((.*?)\)[,\s]", refused, re.DOTALL)
        assert shown, name
        for value in values:
            assert json.dumps(value) in shown[1], name


def test_the_dashboard_reads_what_there_is():
    metrics = ServerMetrics()
    metrics.text(ExecutorStats(running=0, waiting=0, kv_cache_usage=0.0))  # all is known
    families = {f"{one.name}": one.type for one in metrics.registry.collect()}
    dashboard = json.loads((ROOT / "configs" / "serve" / "grafana.json").read_text())
    expressions = [one["expr"] for panel in dashboard["panels"] for one in panel["targets"]]
    asked = {name for text in expressions for name in re.findall(r"trtla_\w+", text)}
    assert len(asked) > 10
    for name in asked:
        family, _, part = re.fullmatch(r"(\w+?)((_total|_bucket)?)", name).groups()
        assert (
            families[family] == {"_total": "counter", "_bucket": "histogram", None: "gauge"}[part]
        )
    for name in families:
        assert f"`{name.removeprefix('trtla_')}`" in DOCS, name


def test_the_openapi_document_has_the_fields(served):
    schemas = served.http.get("/openapi.json").json()["components"]["schemas"]
    assert set(schemas["ChatBody"]["properties"]) == set(ChatBody.model_fields)
    assert schemas["CompletionBody"]["additionalProperties"] is False
    assert set(schemas["ResponseBody"]["properties"]) == set(responses.ResponseBody.model_fields)


def test_the_openapi_document_has_the_kinds_of_answers(served):
    kinds = {}
    for path, operations in served.http.get("/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            kinds[method, path] = set(operation["responses"]["200"]["content"])
    for path in ("/health", "/metrics", "/v1/models"):
        assert {kind(served.http.get(path))} == kinds["get", path]
    for path, asked in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
    ):
        most = "max_output_tokens" if "input" in asked else "max_tokens"
        bodies = ({**asked, most: 1, "stream": stream} for stream in (False, True))
        found = {kind(served.http.post(path, json=body)) for body in bodies}
        assert found == kinds["post", path]


def kind(answer) -> str:
    assert answer.status_code == 200
    return answer.headers["content-type"].partition(";")[0]


def test_the_health_check_asks_the_port_that_is_configured(served):
    dockerfile = (ROOT / "configs" / "serve" / "Dockerfile").read_text()
    check = json.loads(re.search(r"HEALTHCHECK [^\n]*\n *CMD (.*)", dockerfile)[1])
    for port, code in ((served.address.rpartition(":")[2], 0), ("1", 1)):
        env = {**os.environ, "TRTLA_SERVE_PORT": port}
        ran = subprocess.run([sys.executable, *check[1:]], env=env, stderr=subprocess.DEVNULL)
        assert ran.returncode == code


def test_the_scrape_config_is_yaml():
    (job,) = yaml.safe_load((ROOT / "configs" / "serve" / "prometheus.yml").read_text())[
        "scrape_configs"
    ]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8000"]}]
