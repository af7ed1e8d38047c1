"""`trtla bench --serve` against a server whose answers are known: figures, failures, refusals."""

from __future__ import annotations

import csv
import io
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.extras.bench.support import LoadServer, running
from tests.support.command import ROOT, Ran, refused, trtla

GOOD = ("one", "two", "three", "four")


def prompts(folder: Path, *texts: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"category": "x", "text": t}) + "\n" for t in texts))
    return path


def load(server: LoadServer, file: Path, *args: str | Path) -> Ran:
    with running(server):
        return trtla(
            "bench", "--serve", server.url, "--prompts", file, "--max-output-len", "6", *args
        )


@pytest.mark.parametrize(
    ("piece", "line_end", "endpoint"),
    [(10**6, "\n", "chat"), (7, "\r\n", "completions"), (1, "\r", "chat")],
)
def test_figures_of_runs(tmp_path: Path, piece: int, line_end: str, endpoint: str) -> None:
    server = LoadServer(piece=piece, line_end=line_end)
    file = prompts(tmp_path, *GOOD)
    ran = load(
        server, file, "--concurrency", "1,3", "--num-prompts", "4", "--endpoint", endpoint, "--json"
    )
    assert ran.code == 0, ran.err
    assert ran.json["settings"] == {
        "url": server.url, "model": "toy", "owned_by": "test", "endpoint": endpoint, "prompts": 4,
        "max_output_len": 6, "seed": 0, "arrivals_seed": 0, "extra_body": {},
        "tokens_from": "usage",
    }  # fmt: skip
    assert ran.json["interrupted"] is False
    assert [one["concurrency"] for one in ran.json["rows"]] == [1, 3]
    for one in ran.json["rows"]:
        assert (one["requests"], one["completed"], one["failed"]) == (4, 4, 0)
        assert (one["total_input_tokens"], one["output_tokens"]) == (4 * 7, 4 * 6)
        assert one["tokens_per_s"] == pytest.approx(24 / one["time_s"])
        assert 0 < one["median_ttft_ms"] <= one["median_e2el_ms"] <= one["time_s"] * 1000
        assert one["failures"] == []
        assert "drafted" not in one
    assert len(server.bodies) == 1 + 2 * 4  # a warm-up request
    assert sorted(body["seed"] for body in server.bodies[1:]) == list(range(8))
    assert "note: prompts recur" in ran.err


def test_no_run_asks_the_prompts_of_another(tmp_path: Path) -> None:
    server = LoadServer()
    ran = load(server, prompts(tmp_path, *GOOD), "--concurrency", "1,2", "--temperature", "0,1")
    assert ran.code == 0, ran.err
    asked = [body["messages"][0]["content"] for body in server.bodies[1:]]
    assert (asked, ran.out.count("| 2 at a time |")) == (list(GOOD), 2)
    assert "prompts recur" not in ran.err
    assert "fewer are at a time than --concurrency: 1 request a run; use --num-prompts" in ran.err


def test_requests_are_openais(tmp_path: Path) -> None:
    server = LoadServer(key="secret")
    key = tmp_path / "key"
    key.write_text("secret\nanother\n")
    ran = load(
        server, prompts(tmp_path, "one", "two"), "--num-prompts", "3", "--system", "Be brief.",
        "--processor", "topknucleus:0.5:9:0.8", "--seed", "5", "--ignore-eos", "--api-key-file",
        key, "--extra-body", '{"cache": "private"}', "--output-format", "csv",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}
    assert server.bodies[-1] == {
        "model": "toy", "messages": [system, user], "max_tokens": 6, "temperature": 0.5,
        "top_k": 9, "top_p": 0.8, "seed": 7, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True, "cache": "private",
    }  # fmt: skip
    [line] = csv.DictReader(io.StringIO(ran.out))
    assert (line["completed"], line["temperature"], line["failures"]) == ("3", "0.5", "[]")


def test_so_many_requests_run_at_a_time(tmp_path: Path) -> None:
    file = prompts(tmp_path, *GOOD)
    server = LoadServer(together=3)
    ran = load(server, file, "--concurrency", "3", "--num-prompts", "9")
    assert ran.code == 0, ran.err
    assert "fewer" not in ran.err
    assert server.most == 3
    server = LoadServer(together=8)
    ran = load(server, file, "--request-rate", "inf", "--num-prompts", "8", "--json")
    assert (server.most, ran.json["rows"][0]["request_rate"]) == (8, "inf")
    assert load(LoadServer(), file, "--request-rate", "2000").code == 0


def test_failed_requests_are_counted_and_the_others_go_on(tmp_path: Path) -> None:
    file = prompts(tmp_path, "one", "busy", "broken", "cut", "fails", "busy 2", "two")
    ran = load(LoadServer(), file, "--concurrency", "2", "--json")
    assert ran.code == 0, ran.err
    [one] = ran.json["rows"]
    assert (one["completed"], one["failed"], one["output_tokens"]) == (2, 5, 12)
    reasons = {failure["reason"]: failure["count"] for failure in one["failures"]}
    assert reasons.pop("429: queue full") == 2
    assert reasons.pop("500: out of order") == 1
    assert reasons.pop("the engine died") == 1
    [(cut, _)] = reasons.items()
    assert cut.startswith(("RemoteProtocolError", "ReadError"))
    table = load(LoadServer(), file).out
    assert "1 at a time: 2 failed: 429: queue full" in table


def test_connections_that_the_server_closes_between_requests_are_no_failures(tmp_path) -> None:
    server = LoadServer(closes=True)
    ran = load(server, prompts(tmp_path, "one", "two"), "--num-prompts", "4", "--json")
    assert ran.code == 0, ran.err
    assert (ran.json["rows"][0]["completed"], ran.json["rows"][0]["failed"]) == (4, 0)
    assert len(server.bodies) == 5


def test_nothing_answered_is_an_error_below_the_table(tmp_path: Path) -> None:
    ran = load(LoadServer(), prompts(tmp_path, "busy now"), "--num-prompts", "3")
    refused_below_table(ran, 1, "no request of 3 was answered: 429: queue full")


@pytest.mark.parametrize("refuses", [(), ("stream_options",)])
def test_chunks_are_counted_where_a_server_reports_no_usage(
    tmp_path: Path, refuses: tuple[str, ...]
) -> None:
    server = LoadServer(usage=False, refuses=refuses)
    ran = load(server, prompts(tmp_path, *GOOD), "--json")
    assert ran.code == 0, ran.err
    assert ("it refuses stream_options" in ran.err) == bool(refuses)
    assert "a chunk is counted as a token" in ran.err
    assert ran.json["settings"]["tokens_from"] == "chunks"
    [one] = ran.json["rows"]
    assert (one["output_tokens"], one["total_token_throughput"]) == (24, None)


def test_our_server_reports_its_drafts(tmp_path: Path) -> None:
    ours: dict[str, Any] = {"id": "e", "owned_by": "trtla", "chat": False}
    server = LoadServer(models=[ours])
    ran = load(server, prompts(tmp_path, *GOOD), "--json")
    assert server.bodies[-1]["prompt"] == "four"  # it has no template
    [one] = ran.json["rows"]
    assert (one["steps"], one["drafted"], one["accepted"]) == (16, 32, 8)
    assert (one["acceptance_rate"], one["tokens_per_step"]) == (0.25, 20 / 16)


def test_texts_are_checked_alone(tmp_path: Path) -> None:
    file = prompts(tmp_path, *GOOD)
    sampled = ("--temperature", "0.5", "--seed", "1", "--check-texts")
    server = LoadServer()
    ran = load(server, file, *sampled, "--concurrency", "2", "--num-prompts", "8", "--json")
    assert ran.json["checked_texts"] == {"texts": 8, "equal": 8, "first": None, "failed": None}
    assert len(server.bodies) == 1 + 8 + 8
    greedy = load(LoadServer(drifts=True), file, "--seed", "1", "--check-texts")
    first = "differ from those of the same requests alone: request 0 of 1 at a time differs at"
    refused_below_table(greedy, 3, "4 of 4 texts", first, "character 2")
    failing = LoadServer(refuses=())
    assert "texts as alone: 4 of 4" in load(failing, file, "--check-texts").out


def refused_below_table(ran: Ran, code: int, *parts: str) -> None:
    """A refusal after results were printed, with the runs' notes before it."""
    assert ran.code == code, ran
    assert ran.out.startswith("`trtla")
    error = ran.err[ran.err.index("error: ") :]
    assert all(part in error for part in parts), error


def test_what_the_server_refuses_is_said(tmp_path: Path) -> None:
    file = prompts(tmp_path, "one")
    refused(load(LoadServer(key="k"), file), 1, "refuses the key", "--api-key-file")
    named = ("--served-model-name", "other")
    refused(load(LoadServer(), file, *named), 2, "has no model other", "it has toy")
    refused(load(LoadServer(models=[]), file), 1, "has no list of models", "--served-model-name")
    ran = load(LoadServer(refuses=("top_k",)), file, "--top-k", "3")
    refused(ran, 1, "did not answer the warm-up request: 400: no top_k here")
    with socket.socket() as taken:  # nobody listens there, nor can anybody else
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        refused(trtla("bench", "--serve", url), 1, f"no server answers at {url}")


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("--rounds", "2"), ("--serve does not read --rounds",)),
        (("-m", "engine"), ("--serve does not read --engine-dir",)),
        (("--ablation",), ("--serve does not read --ablation",)),
        (("--concurrency", "2", "--request-rate", "1"), ("exclude each other",)),
        (("--request-rate", "1,0"), ("--request-rate has 0",)),
        (("--request-rate", "nan"), ("--request-rate has nan",)),
        (("--extra-body", "[]"), ("--extra-body [] is no JSON object",)),
        (("--system", "x", "--endpoint", "completions"), ("--system",)),
        (("--api-key-file", "/dev/null"), ("does not hold a key",)),
        (("--serve", "localhost"), ("is not the address of a server",)),
    ],
)
def test_flags_are_refused_before_the_server_is_asked(
    args: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    refused(trtla("bench", "--serve", "http://127.0.0.1:9", *args), 2, *parts)


def test_without_serve_its_flags_are_refused() -> None:
    ran = trtla("bench", "-m", ROOT / "trtla/assets/tiny-llama", "--concurrency", "2")
    refused(ran, 2, "--concurrency is read by --serve alone")
    refused(trtla("bench"), 2, "missing option", "--engine-dir")


@pytest.mark.parametrize(("module", "package"), [("httpx", "httpx"), ("httpx_sse", "httpx-sse")])
def test_a_missing_package_is_named(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    ran = trtla("bench", "--serve", "http://127.0.0.1:9")
    refused(ran, 1, f'"{package}"', "pip install 'trtla[serve]'")


def test_no_report_is_made_of_it(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    path.write_text(load(LoadServer(), prompts(tmp_path, "one"), "--json").out)
    refused(trtla("report", path), 2, "is no document of trtla that a report is made of")


def test_an_interrupted_run_has_results(tmp_path: Path) -> None:
    file = prompts(tmp_path, "one", "two", "hangs", "three")
    command = [sys.executable, "-m", "trtla", "bench", "--json", "--prompts", str(file), "--serve"]
    with (
        running(LoadServer()) as server,
        subprocess.Popen(
            [*command, server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PYTHONPATH": str(ROOT)},
        ) as process,
    ):  # fmt: skip
        while len(server.bodies) < 4 and process.poll() is None:  # the warm-up and three
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    found = json.loads(out)
    assert found["interrupted"] is True
    assert (found["rows"][0]["requests"], found["rows"][0]["completed"]) == (4, 2)
    assert err.endswith("error: interrupted\n")
    assert "Traceback" not in err
