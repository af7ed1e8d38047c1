"""The light installation, without PyTorch and transformers: every command runs on a CPU.

Here both are blocked; .ci/run has these tests in an environment that lacks them as well.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from tests.support.command import ROOT, known, needs, there
from tests.support.served import SHIPPED
from trtla.errors import is_installed

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
_BLOCKED = "import sys\nfor name in ('torch', 'transformers', 'safetensors'):\n"
_BLOCKED += "    sys.modules[name] = None\n"
_COMMAND = _BLOCKED + "from trtla.__main__ import main\nmain()\n"
_COMMANDS = f"""{_BLOCKED}
import contextlib, io, json
from trtla.cli.app import execute
outs = []
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = execute(line)
    assert code == 0, (line, code)
    outs.append(out.getvalue())
print(json.dumps(outs))
"""


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not is_installed("torch"):  # which makes the model
        return SHIPPED
    from tests.support.gguf_models import BYTE_LEVEL, byte_vocabulary, write_gguf
    from tests.support.models import Variant, make_model

    vocabulary = byte_vocabulary()
    keys = {"hidden_size": 64, "intermediate_size": 112, "vocab_size": len(vocabulary)}
    model = make_model(Variant("small", {**keys, "head_dim": 32, "max_position_embeddings": 256}))
    tokenizer = {
        **BYTE_LEVEL,
        "tokens": vocabulary,
        "merges": ["a b"],
        "eos_token_id": 257,
        "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    }
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    return write_gguf(model, path, "Q8_0", tokenizer=tokenizer)


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TRTLA_COMPILED": "1"}


def ran(tmp_path: Path, *lines: Sequence[str | Path], stdin: str = "") -> list[str]:
    """What command lines print, one after another in one process."""
    given = json.dumps([[str(word) for word in line] for line in lines])
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS, given],
        capture_output=True,
        text=True,
        input=stdin,
        env=environment(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_run_and_batch(gguf_file: Path, tmp_path: Path) -> None:
    """A file and a folder, everything that chooses tokens, and a batch; in one process."""
    body = {
        "model": gguf_file.stem,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 6,
    }
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
    batch = ("batch", tmp_path / "in.jsonl", "-m", gguf_file, "-o", tmp_path / "out")
    own = ("run", "-p", "a b a b a b", "-n", "12", "--json", "-m")
    plain = ("--lookahead", "1,1,0")
    flags = [
        ("--temperature", "0.8", "--top-p", "0.9", "--seed", "3"),
        ("--repetition-penalty", "1.3"),
        ("--drafter", "prompt-lookup"),
        ("--num-beams", "2"),
        ("--check-lossless",),
        ("--kv-cache-dtype", "int8"),
    ]
    lines = [(*own, model, *more) for model in (gguf_file, SHIPPED) for more in ((), plain)]
    lines += [(*own, gguf_file, *more) for more in flags]
    found = ran(tmp_path, *lines, *known(batch))
    results = [json.loads(one)["results"][0] for one in found[: len(lines)]]
    texts = [one["output_ids"] for one in results[:4]]
    assert texts[0] == texts[1] != []
    assert texts[2] == texts[3] != []
    if there("batch"):
        answer = json.loads((tmp_path / "out" / "output.jsonl").read_text())
        assert answer["response"]["status_code"] == 200


def test_convert_build_and_what_measures(gguf_file: Path, tmp_path: Path) -> None:
    """Every type that needs no calibration, an engine of one, and all that opens it."""
    types = ("auto", "float32", "bfloat16", "float16", "int8", "int4")
    made = {dtype: tmp_path / dtype for dtype in types}
    engine = tmp_path / "engine"
    short = ("-n", "4", "--num-prompts", "1", "--prompts", "code")
    ran(
        tmp_path,
        *(("convert", "-m", SHIPPED, "-o", made[dtype], "--dtype", dtype) for dtype in types),
        ("convert", "-m", gguf_file, "-o", tmp_path / "from-gguf", "--dtype", "float32"),
        ("build", made["int4"], "-o", engine, "--lookahead", "3,3,3"),
        ("build", SHIPPED, "-o", tmp_path / "plain", "--dtype", "float32"),
        ("run", engine, "-p", "def f(", "-n", "4", "--check-lossless"),
        *known(
            ("inspect", engine),
            ("doctor", engine),
            ("explain", engine, "-p", "def f(", "-n", "4"),
            ("bench", engine, *short, "--rounds", "1"),
            ("tune", engine, *short, "--budget", "1h", "--write", tmp_path / "tuned.yaml"),
        ),
    )
    assert (tmp_path / "tuned.yaml").is_file() is bool(there("tune"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("run", "--dtype", "float16"), "tiny-llama needs torch, which is not installed: there is"),
        (("run", "--device", "cuda"), "device 'cuda' needs torch"),
        (("run", "--tp-size", "2"), "tp_size 2 needs torch"),
        (
            ("convert", "-m", "old", "-o", "out"),
            "bin, a file of PyTorch, needs torch",
        ),
        (("bench", "--compare", "hf"), "--compare hf needs torch and transformers"),
        (
            ("convert", "-o", "out", "--dtype", "int4", "--calib-data", "texts.txt"),
            "calibration needs torch and transformers",
        ),
    ],
    ids=lambda one: one[-1] if isinstance(one, tuple) else "",
)
def test_what_needs_torch_says_how_to_get_it(
    line: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    if not there(line[0]):
        pytest.skip(f"there is no command {line[0]}")
    (tmp_path / "texts.txt").write_text("a text\n")
    shutil.copytree(SHIPPED, tmp_path / "old", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "old" / "pytorch_model.bin").touch()
    model = () if "-m" in line else ("-m", str(SHIPPED))
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, line[0], *model, *line[1:]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        input="a\n",
        env=environment(tmp_path),
    )
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: pip install 'trtla[torch]'")
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()


@needs("doctor")
def test_doctor_knows_what_runs_without_it(tmp_path: Path) -> None:
    t5 = tmp_path / "t5"
    t5.mkdir()
    keys = dict.fromkeys(("d_model", "d_ff", "vocab_size"), 64) | {"d_kv": 16, "num_heads": 4}
    ids = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "num_layers": 1}
    named = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}
    (t5 / "config.json").write_text(json.dumps({**named, **keys, **ids}))
    tensor = {"dtype": "F32", "shape": [64, 64], "data_offsets": [0, 4 * 64 * 64]}
    header = json.dumps({"shared.weight": tensor}).encode()
    size = len(header).to_bytes(8, "little")
    (t5 / "model.safetensors").write_bytes(size + header + bytes(4 * 64 * 64))
    problems = {}
    for model in (SHIPPED, t5):
        done = subprocess.run(
            [sys.executable, "-c", _COMMAND, "doctor", str(model), "--json"],
            capture_output=True,
            text=True,
            env=environment(tmp_path),
        )
        problems[model] = json.loads(done.stdout)["model"]["problems"]
    assert problems[SHIPPED] == []
    assert problems[t5] == ["it needs torch, which is not installed: it is an encoder-decoder"]


def test_a_gguf_file_is_named_by_its_path(gguf_file: Path, tmp_path: Path) -> None:
    """By none of trtla's cache; and what runs without PyTorch is not said to run on it."""
    told = []
    for dtype in ("float16", "float32"):
        line = ["run", str(gguf_file), "-p", "a", "-n", "1", "--dtype", dtype]
        done = subprocess.run(
            [sys.executable, "-c", _COMMAND, *line],
            capture_output=True,
            text=True,
            env=environment(tmp_path),
        )
        told.append(done.stderr)
    assert f"error: {gguf_file} needs torch, which is not installed" in told[0]
    assert "note: ran on cpu, " in told[1]
    assert "torch" not in told[1]


def test_without_a_compiler_either_of_the_two_is_named(tmp_path: Path) -> None:
    more = {"CXX": "no-such-compiler", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, "run", str(SHIPPED), "-p", "a"],
        capture_output=True,
        text=True,
        env={**environment(tmp_path), **more},
    )
    error, hint = done.stderr.splitlines()[-2:]
    assert "needs torch, which is not installed: no C++ compiler was found" in error
    assert "install g++" in hint
    assert "pip install 'trtla[torch]'" in hint
    assert "slower" not in done.stderr


@needs("chat")
def test_chat(gguf_file: Path, tmp_path: Path) -> None:
    (out,) = ran(tmp_path, ("chat", "-m", gguf_file, "-n", "8"), stdin="hello\n/stats\n")
    assert out.strip()


def test_serve(gguf_file: Path, tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, "serve", "-m", str(gguf_file), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    )
    try:
        assert child.stderr is not None
        lines = iter(child.stderr.readline, "")
        address = next(
            word.rstrip("/.,") for line in lines for word in line.split() if "http://" in word
        )
        address = address.removesuffix("/v1")
        until = time.monotonic() + 120
        while httpx.get(f"{address}/health", timeout=120).status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.05)
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}
        answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=120)


def test_llm(gguf_file: Path, tmp_path: Path) -> None:
    program = _BLOCKED + (
        "from trtla import LLM, SamplingParams\n"
        f"with LLM({str(gguf_file)!r}) as llm:\n"
        "    first = llm.generate(['a b a b'], SamplingParams(max_output_len=8))[0].text\n"
        "    streamed = ''.join(p.text for p in llm.stream('a b a b', SamplingParams(8)))\n"
        "    assert first == streamed\n"
        "    llm.chat([{'role': 'user', 'content': 'hi'}], SamplingParams(8))\n"
        "    assert len(llm.log_probs('a b', [3, 4])) == 2\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=environment(tmp_path))
