"""README and docs: every command is one that the command line takes, and what can run here runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest
import torch

from tests.support.command import ROOT, trtla
from tests.support.gguf_models import BYTE_LEVEL, write_gguf
from trtla.cli.app import cli
from trtla.cli.commands import COMMANDS, ORDER, extension
from trtla.errors import Extra
from trtla.formats.config import BLOCKS
from trtla.formats.families import DECODERS
from trtla.formats.transformers_load import load_model, load_tokenizer

PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
RUN = tuple(
    page
    for page in PAGES
    if re.search("README|install|guide|migrate|gguf|batch|python|plugins", page)
)
"""Pages whose commands and Python run, each page from top to bottom in a folder of its own."""

MODELS = ("Llama-3.1-8B", "Llama-2-7b-chat-hf", "vicuna-7b-v1.3", "TARGET", "SMALL")
"""Names in the pages that mean the shipped model when they run."""
ELSEWHERE = ("mpirun", "tensorrt-llm", "trt-engine", "tp2", "trtla serve")
"""What marks a command that needs a GPU and TensorRT-LLM, or several ranks, or does not end."""
FASTER = {
    "TRTLA_SUMMARIZE_MAX_ITE": "1",
    "TRTLA_SUMMARIZE_OUTPUT_LEN": "8",
    "TRTLA_BENCH_NUM_PROMPTS": "1",
    "TRTLA_BENCH_MAX_OUTPUT_LEN": "8",
    "TRTLA_BENCH_ROUNDS": "1",
    "TRTLA_TUNE_BUDGET": "20s",
    "TRTLA_TUNE_BATCH_SIZE": "1",
    "TRTLA_TUNE_NUM_PROMPTS": "1",
    "TRTLA_TUNE_MAX_OUTPUT_LEN": "8",
}

MISSING = {*ORDER} - {*COMMANDS}
"""Commands of extras that are not there."""
FLAG = re.compile(r"--[a-z][a-z0-9-]*")
SHELL = {"|", ">", ">>", "&&", "#"}


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of the fenced blocks of a page, continued lines joined."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [(language, text.replace("\\\n", " ")) for language, text in found]


def commands(page: str) -> list[str]:
    """The `trtla ...` lines of a page, also those of transcripts and behind mpirun."""
    lines = (line.strip() for _, text in blocks(page) for line in text.splitlines())
    lines = (line for line in lines if re.match(r"(\$ )?(mpirun -n \d+ )?trtla ", line))
    there = (line for line in lines if line.split("trtla ", 1)[1].split()[0] not in MISSING)
    return [line for line in there if extension("serve") or not re.search("--ray|replicas", line)]


def runnable(page: str) -> list[str]:
    """The commands that need no more than the shipped model."""
    lines = [line for line in commands(page) if line.startswith("trtla ")]
    return [line for line in lines if not any(mark in line for mark in ELSEWHERE)]


def python(page: str) -> list[str]:
    texts = [text for language, text in blocks(page) if language == "python" and "trtla" in text]
    return [
        text for text in texts if all(is_there(f"trtla/extras/{name}") for name in extras_in(text))
    ]


def extras_in(text: str) -> list[str]:
    return re.findall(r"trtla\.extras\.(\w+)", text)


def is_there(folder: str) -> bool:
    """Return whether an extra is there, or any other folder of the package."""
    return (ROOT / folder / "__init__.py").exists()


def arguments(line: str) -> list[str]:
    """A command's words after `trtla`, up to what the shell takes."""
    words = shlex.split(os.path.expandvars(line), comments=True)
    words = words[words.index("trtla") + 1 :]
    end = next((i for i, word in enumerate(words) if word in SHELL), len(words))
    return words[:end]


def parse(words: list[str]) -> None:
    """Parse a command line without running it; raises what click or trtla would tell."""
    name, *rest = words
    parent = click.Context(cli, info_name="trtla", **cli.context_settings)
    COMMANDS[name].make_context(name, rest, parent=parent)


def flag_tables(page: str) -> Iterator[tuple[str, str]]:
    """(command, flag) for each flag in the second column of tables headed `trtla COMMAND`."""
    command = None
    for line in (ROOT / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) < 2:
            command = None
        elif match := re.fullmatch(r"`trtla (\w+)`", cells[1]):
            command = None if match[1] in MISSING else match[1]
        elif command is not None:
            yield from ((command, flag) for flag in FLAG.findall(cells[1]))


def flags_of(command: str) -> set[str]:
    return {flag for param in COMMANDS[command].params for flag in param.opts}


@pytest.mark.parametrize(
    ("page", "line"), [(page, line) for page in PAGES for line in commands(page)]
)
def test_the_command_line_takes_it(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # presets are named as they lie here
    parse(arguments(line))


@pytest.mark.parametrize(
    ("page", "command", "flag"),
    [(page, *pair) for page in PAGES for pair in dict.fromkeys(flag_tables(page))],
)
def test_the_command_has_the_flag(page: str, command: str, flag: str) -> None:
    assert flag in flags_of(command)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("http"):
            continue
        name, _, heading = target.partition("#")
        place = (ROOT / page).parent / name if name else ROOT / page
        assert place.exists(), target
        headings = re.findall(r"^#+ (.+)$", place.read_text(), re.MULTILINE) if heading else []
        slugs = [
            re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in headings
        ]
        assert not heading or heading in slugs, target


def test_the_checks_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(click.UsageError):
        parse(arguments("trtla run --engine-dir e --no-such-flag 1"))
    with pytest.raises(KeyError):
        parse(arguments("mpirun -n 2 trtla jog --engine-dir e"))
    assert sum(len(commands(page)) for page in PAGES) > 30
    if not MISSING and is_there("trtla/extras/hosts"):
        assert all(runnable(page) or python(page) for page in RUN)
    assert sum(len(python(page)) for page in RUN) > 2
    assert len(list(flag_tables("docs/migrate-from-tensorrt-llm.md"))) > 10
    assert "--qformat" not in flags_of("convert")


@pytest.fixture(scope="module")
def gguf_file(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = load_model("AutoModelForCausalLM", tiny_llama, torch.float32, "a hint")
    content = json.loads((tiny_llama / "tokenizer.json").read_text())
    vocab = sorted(content["model"]["vocab"].items(), key=lambda item: item[1])
    added = {token["id"]: token["content"] for token in content["added_tokens"]}
    tokens = {index: token for token, index in vocab} | added
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    tokenizer = {
        **BYTE_LEVEL,
        "tokens": [tokens[index] for index in range(len(tokens))],
        "token_type": [3 if index in added else 1 for index in range(len(tokens))],
        "merges": merges,
        "chat_template": load_tokenizer(tiny_llama).chat_template,
    }
    folder = tmp_path_factory.mktemp("gguf")
    return write_gguf(model, folder / "model.gguf", "Q8_0", tokenizer=tokenizer)


@pytest.fixture(params=RUN)
def page(
    request: pytest.FixtureRequest,
    tiny_llama: Path,
    gguf_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A page; its names mean the shipped model and the shipped articles in the current folder."""
    for name in MODELS:
        (tmp_path / name).symlink_to(tiny_llama)
    (tmp_path / "articles.jsonl").symlink_to(tiny_llama.parent / "articles.jsonl")
    (tmp_path / "model.gguf").symlink_to(gguf_file)
    monkeypatch.setenv("M", "model.gguf")
    requests = next(text for _, text in blocks("docs/batch.md") if text.startswith("{"))
    (tmp_path / "requests.jsonl").write_text(requests)
    monkeypatch.chdir(tmp_path)
    return str(request.param)


@pytest.mark.deep
def test_commands_run_in_their_order_and_then_the_python(page: str) -> None:
    for line in runnable(page):
        ran = trtla(*arguments(line), env=FASTER, stdin="Write a list.\n")  # for chat
        assert ran.code == 0, (line, ran.err)
        assert ran.out, line
        if target := re.search(r" > (\S+)$", line):
            Path(target[1]).write_text(ran.out)
    for text in python(page):
        done = subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout) > 100


def test_the_extras_of_hints_are_those_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]\n")[1]
    extras = set(re.findall(r"^([\w-]+) = \[", project.split("\n[")[0], re.MULTILINE))
    assert {*get_args(Extra)} == extras - {"dev", "tensorrt-llm"}
    install = (ROOT / "docs" / "install.md").read_text()
    assert all(f"| `pip install '.[{extra}]'` |" in install for extra in extras - {"dev"})


def test_tensorrt_llm_is_installed_beside_a_torch_that_is_held() -> None:
    """One command alone would exchange PyTorch's CUDA 13.0 build, and the import would fail."""
    section = (ROOT / "docs" / "install.md").read_text().split("## With TensorRT-LLM", 1)[1]
    section = section.split("\n## ", 1)[0]
    block = next(text for text in re.findall(r"```\n(.*?)```", section, re.DOTALL) if "pip" in text)
    lines = block.splitlines()
    torch = next(line for line in lines if "install torch==" in line)
    extra = next(line for line in lines if "[tensorrt-llm]" in line)
    hold = next(line for line in lines if "pip freeze" in line)
    assert lines.index(torch) < lines.index(hold) < lines.index(extra)
    assert "--index-url https://download.pytorch.org/whl/cu130" in torch
    assert f"-c {hold.split('> ')[1]} " in extra
    rows = {
        cells[1].strip(): cells
        for line in section.splitlines()
        if len(cells := line.split("|")) > 5
    }
    assert rows["1.2.1"][3].split(",")[0].strip() == torch.split("torch==")[1].split()[0]
    assert {rows[release][2].strip() for release in ("0.20.0", "1.0.0", "1.2.1")} == {"3.12"}
    for needed in (
        "Ubuntu 24.04",
        "CUDA Toolkit 13.1",
        "CUDA_HOME",
        "cuda-compat-13-1",
        "libopenmpi-dev",
    ):
        assert needed in section


def test_what_says_how_to_install_it_names_that_section() -> None:
    from trtla.trtllm.library import HOW_TO_INSTALL

    name, heading = re.search(r"(\S+\.md), (.+)", HOW_TO_INSTALL).groups()
    assert f"\n## {heading}\n" in (ROOT / name).read_text()


def test_the_rules_of_tensorrt_llm_name_tests_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## Rules of", 1)[1]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) > 20
    for _, tested in rows[2:]:
        named = re.findall(r"`([^`:]+\.py)(?:::(\w+))?`", tested)
        assert named, tested
        for file, test in named:
            if file.startswith("extras/") and not is_there("trtla/" + file.rpartition("/")[0]):
                continue
            source = (ROOT / "tests" / file).read_text()
            assert not test or f"def {test}(" in source, f"{file}::{test}"


def test_the_pages_name_every_family_and_every_type_of_blocks() -> None:
    pages = {page: (ROOT / "docs" / page).read_text() for page in ("guide.md", "gguf.md")}
    pages["quantised-weights.md"] = (ROOT / "docs" / "quantised-weights.md").read_text()
    of_files = [name for name in BLOCKS if "_G" not in name]
    wanted = {
        "guide.md": [f"| `{family.architecture}` |" for family in DECODERS],
        "gguf.md": [*(f"`{family.gguf}`" for family in DECODERS), *of_files],
        "quantised-weights.md": of_files,
    }
    for page, names in wanted.items():
        missing = [name for name in names if name not in pages[page]]
        assert not missing, f"docs/{page} lacks {missing}"


def test_the_map_names_files_and_packages_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things go", 1)[1]
    packages, table = text.split("| to add |", 1)
    named = re.findall(r"`([a-z_0-9/]+(?:\.py|\.h|/))`", table.split("## Style")[0])
    assert len(named) > 20
    missing = [n for n in named if not ((ROOT / "trtla" / n).exists() or (ROOT / n).exists())]
    assert missing == []
    folders = {path.parent.name for path in (ROOT / "trtla").glob("*/__init__.py")}
    assert folders <= set(re.findall(r"\b([a-z]+)/", packages))
