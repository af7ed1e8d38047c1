"""GGUF files by name on the hub: its HTTP API and its cache, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.command import ROOT, needs
from tests.support.gguf_models import write_gguf
from tests.support.models import VARIANTS, make_model
from trtla.errors import UsageError
from trtla.formats.hub import _chosen

REPO, COMMIT = "some-org/Tiny-3.2-GGUF", "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The address of a hub with one model, and what it was asked for."""
    made = tmp_path_factory.mktemp("gguf") / "model.gguf"
    data = write_gguf(make_model(VARIANTS[0]), made).read_bytes()
    names = ("Tiny-3.2-Q4_K_M.gguf", "Tiny-3.2-Q8_0.gguf", "mmproj-Tiny-Q8_0.gguf")
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path.partition('?')[0]}")
            place, _, name = self.path.partition("?")[0].rpartition("/")
            if self.path.startswith(f"/api/models/{REPO}/tree/main"):
                files = [{"type": "file", "path": n, "size": len(data), "oid": n} for n in names]
                self.answer(json.dumps(files).encode())
            elif place.startswith(f"/{REPO}/resolve/") and name in names:
                self.answer(data, ETag=f'"{name}"')
            else:
                self.answer(b"{}", 404, **{"X-Error-Code": "RepoNotFound"})

        do_HEAD = do_GET  # noqa: N815

        def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for key, value in {"X-Repo-Commit": COMMIT, **headers}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


SEVERAL = """
import json, sys
from trtla.cli.app import execute
sys.exit(max(execute(args) for args in json.loads(sys.argv[1])))
"""


def asked_of(hub: str, home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run trtla with that hub and a home of its own."""
    return all_asked_of(hub, home, [list(args)], **env)


def all_asked_of(
    hub: str, home: Path, commands: list[list[str]], **env: str
) -> subprocess.CompletedProcess[str]:
    """Run trtla several times, one after another in one process, until it ends."""
    settings = {"HF_ENDPOINT": hub, "HF_HOME": str(home / "hf")}
    return subprocess.run(
        [sys.executable, "-c", SEVERAL, json.dumps(commands)],
        capture_output=True, text=True, cwd=home,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "0", **settings, **env},
    )  # fmt: skip


@needs("inspect")
def test_a_file_is_fetched_once_and_read_offline(
    hub: tuple[str, list[str]], tmp_path: Path
) -> None:
    address, asked = hub
    names = (f"{REPO}:q4_k_m", f"{REPO}:Tiny-3.2-Q4_K_M.gguf", f"{REPO}@main:Q4_K_M")
    commands = [["inspect", "-m", name, "--json"] for name in names]
    done = all_asked_of(address, tmp_path, commands)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"kind": "GGUF file"') == 3
    assert sum(one.startswith("GET") and one.endswith(".gguf") for one in asked) == 1
    before = len(asked)
    there = ["inspect", "--json", f"{REPO}:Q4_K_M"]
    absent = ["inspect", "some-org/other:Q4_K_M"]
    done = all_asked_of("http://127.0.0.1:9", tmp_path, [there, absent])
    assert done.stdout.count('"kind": "GGUF file"') == 1
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 2), done.stderr
    assert "could not be fetched from the hub: it does not answer ([Errno " in done.stderr
    absent = ["inspect", f"{REPO}:Q8_0"]
    done = all_asked_of(address, tmp_path, [there, absent], HF_HUB_OFFLINE="1")
    assert done.stdout.count('"kind": "GGUF file"') == 1
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 2), done.stderr
    assert f"{REPO} has no GGUF file for Q8_0\nhint: name one of these: Tiny-3.2-Q4_K_M" in (
        done.stderr
    )
    assert len(asked) == before


def test_the_same_tokens_as_from_the_file(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    flags = ("--input-file", "p.jsonl", "-n", "8", "--json")
    done = asked_of(hub[0], tmp_path, "run", "-m", f"{REPO}:Q8_0", *flags)
    assert done.returncode == 0, done.stderr
    [file] = (tmp_path / "hf").glob("hub/*/snapshots/*/Tiny-3.2-Q8_0.gguf")
    (tmp_path / "some-org").mkdir()
    (tmp_path / f"{REPO}:here").symlink_to(file)  # what exists here is no name of the hub
    others = [["run", "-m", path, *flags] for path in (str(file), f"{REPO}:here")]
    again = all_asked_of(hub[0], tmp_path, others)
    assert again.returncode == 0, again.stderr
    (ids,), several = output_ids(done.stdout), output_ids(again.stdout)
    assert several == [ids, ids]


def output_ids(said: str) -> list[list[int]]:
    """Of each of the documents that were printed one after another."""
    found, decoder = [], json.JSONDecoder()
    while said := said.lstrip():
        document, end = decoder.raw_decode(said)
        found.append(document["results"][0]["output_ids"])
        said = said[end:]
    return found


def test_what_the_hub_has_not_is_refused(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    said = {
        f"{REPO}:Q5_K_M": f"{REPO} has no GGUF file for Q5_K_M\nhint: name one of these: Tiny-",
        "some-org/none:Q4_0": "some-org/none:Q4_0 does not exist here and could not be fetched",
    }
    done = all_asked_of(hub[0], tmp_path, [["run", name, "hi"] for name in said])
    assert done.returncode == 2
    errors = done.stderr.split("error: ")[1:]
    assert all(error.startswith(one) for error, one in zip(errors, said.values(), strict=True))
    assert "Traceback" not in done.stderr


def test_names_of_files() -> None:
    names = [
        "x-IQ4_XS.gguf", "x-Q4_K_M.gguf", "x-UD-Q4_K_M.gguf", "README.md", "mmproj-x-F16.gguf",
        "Q8/x-Q8_0-00002-of-00002.gguf", "Q8/x-Q8_0-00001-of-00002.gguf", "x-F16.gguf",
    ]  # fmt: skip
    assert _chosen("r", "iq4_xs", names) == ["x-IQ4_XS.gguf"]
    assert _chosen("r", "F16", names) == ["x-F16.gguf"]
    parts = ["Q8/x-Q8_0-00001-of-00002.gguf", "Q8/x-Q8_0-00002-of-00002.gguf"]
    assert _chosen("r", "Q8_0", names) == _chosen("r", parts[1], names) == parts
    assert _chosen("r", "x-Q4_K_M.gguf", names) == ["x-Q4_K_M.gguf"]
    for wanted in ("Q4_K_M", "Q4_K", "Q2_K", "absent.gguf", "README.md", "F"):
        with pytest.raises(UsageError):
            _chosen("r", wanted, names)
    with pytest.raises(UsageError, match="several GGUF files"):
        _chosen("r", "Q4_K_M", names)
