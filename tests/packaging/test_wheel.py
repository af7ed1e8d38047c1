"""What a stranger installs: sdist and wheel hold every file, and the wheel alone does the work."""

from __future__ import annotations

import json
import signal
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.support.installed import ROOT, Environment, build, export, tracked

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the git repository")
QUESTION = {"model": "tiny-llama", "prompt": "def f(", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    return build("sdist", export(folder / "tree"), folder / "dist")


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Of the sdist's files, as pip makes it where there is no wheel."""
    with tarfile.open(sdist) as archive:
        archive.extractall(sdist.parent / "unpacked", filter="data")
    (source,) = (sdist.parent / "unpacked").iterdir()
    return build("wheel", source, sdist.parent / "wheel")


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"), wheel)


@pytest.mark.deep
def test_sdist_and_wheel_hold_every_file_of_the_package(sdist: Path, wheel: Path) -> None:
    """And every package, also `build`, whose name is often ignored."""
    expected = sorted(tracked("trtla"))
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "trtla").rglob("*.py")}
    assert {"trtla/build/__init__.py", "trtla/cli/engines/__init__.py"} <= modules <= set(expected)
    with tarfile.open(sdist) as archive:
        names = [one.name.partition("/")[2] for one in archive if one.isfile()]
    assert sorted(name for name in names if name.startswith("trtla/")) == expected
    with zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if ".dist-info/" not in name]
    assert sorted(names) == expected


@pytest.mark.deep
def test_the_installed_wheel_builds_runs_chats_serves_and_answers_batches(
    environment: Environment, tmp_path: Path
) -> None:
    place = environment.python("import trtla; print(trtla.__file__)").stdout.strip()
    assert Path(place).is_relative_to(environment.site)
    model, engine = Path(place).parent / "assets" / "tiny-llama", tmp_path / "engine"
    built = environment.trtla("build", "--checkpoint-dir", model, "--output-dir", engine)
    assert built.returncode == 0, built.stderr
    assert "slower" not in built.stderr
    ran = environment.trtla("run", "-m", engine, "-p", "def f(", "-n", "4", "--json")
    assert ran.returncode == 0, ran.stderr
    assert "slower" not in ran.stderr
    said = json.loads(ran.stdout)["results"][0]["text"]
    chatted = environment.trtla("chat", "-m", engine, stdin="def f(\n/exit\n")
    assert chatted.returncode == 0, chatted.stderr
    assert chatted.stdout.strip()
    assert _batch(environment, engine, tmp_path) == said
    assert _serve(environment, engine) == said


def _batch(environment: Environment, engine: Path, folder: Path) -> str:
    line = {"custom_id": "one", "method": "POST", "url": "/v1/completions", "body": QUESTION}
    (folder / "asked.jsonl").write_text(json.dumps(line) + "\n")
    name = ("--served-model-name", QUESTION["model"])
    ran = environment.trtla(
        "batch", folder / "asked.jsonl", "-o", folder / "o", "-m", engine, *name
    )
    assert ran.returncode == 0, ran.stderr
    answer = json.loads((folder / "o" / "output.jsonl").read_text())
    return answer["response"]["body"]["choices"][0]["text"]


def _serve(environment: Environment, engine: Path) -> str:
    name = ("--served-model-name", QUESTION["model"])
    server = environment.start("serve", "-m", engine, "--port", "0", *name)
    try:
        address = next(word for line in server.stderr for word in line.split() if "http://" in word)
        request = urllib.request.Request(
            f"{address.rstrip('/,;.')}/v1/completions",
            json.dumps(QUESTION).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            said = json.load(answer)["choices"][0]["text"]
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0, server.stderr.read()
        return said
    finally:
        server.kill()
        server.communicate()
