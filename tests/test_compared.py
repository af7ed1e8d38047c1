"""scripts/compared.py and its page: recorded documents, failing engines, trtla beside itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.gguf_models import BYTE_LEVEL, byte_vocabulary, write_gguf
from tests.support.models import Variant, make_model

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import compared  # noqa: E402
from compared_page import differences, page  # noqa: E402


def arm(engine: str, draft: dict[str, Any], *rounds: tuple[float, list[list[int]]]) -> Any:
    """An arm whose tokens after the first come at some rate, in rounds of texts."""
    return {
        "engine": engine,
        "version": "1.2",
        "reads": "the file",
        "draft": draft,
        "temperature": 0,
        "install": "" if engine == "trtla" else f"{engine}/bin/python -m pip install {engine}==1.2",
        "command": f"{engine}/bin/python scripts/compared_engines.py {engine} m.gguf",
        "rounds": [
            {
                "load_s": 1.5 if engine == "trtla" else 1.0,
                "peak_bytes": 2_000_000_000 if engine == "trtla" else 3_000_000_000,
                "answers": [
                    {"ids": ids, "seconds": 0.25 + (len(ids) - 1) / rate, "first_s": 0.25}
                    for ids in texts
                ],
            }
            for rate, texts in rounds
        ],
    }


A, B = [5, 6, 7], [8, 9, 8]
DOCUMENT: dict[str, Any] = {
    "model": "135M",
    "file": "m.gguf",
    "bytes": 100_000_000,
    "prompts": ["code", "sets/mine.jsonl"],
    "halves": 1,
    "machine": {"processor": "A processor", "cores": 2},
    "load": 0.1,
    "date": "2026-11-29",
    "threads": 2,
    "tokens": 3,
    "texts": 2,
    "rounds": 2,
    "left_out": [{"engine": "vllm", "reason": "it needs 9 GB of memory, 4 are free."}],
    "arms": [
        arm("trtla", {}, (40, [A, B]), (60, [A, B])),
        arm("trtla", {"lookahead": "auto"}, (100, [A, B]), (100, [A, B])),
        arm("other", {}, (50, [A, B]), (70, [A, [8, 9, 9]])),
        arm("other", {"tokens": 5}, (30, [[5, 6, 9], B]), (30, [A, B])),
    ],
    "pieces": {"7": " |x", "9": "\n`"},
}


def cells(text: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.replace("\\|", "!").split("|")[1:-1]] for row in rows]


def test_the_page_has_every_figure_of_a_document() -> None:
    text = page([DOCUMENT])
    assert "A processor, 2 cores, 2 threads; 2026-11-29; load average before: 0.1" in text
    assert (
        "2 texts of 3 tokens, 2 rounds; prompts: code, mine.jsonl, with the first halves of 1"
        in text
    )
    rows = cells(text)
    assert rows[2:6] == [
        ["trtla 1.2", "the file", "0", "none", "50.0", "-", "250", "1.50", "2.00"],
        ["trtla 1.2", "the file", "0", "lookahead auto", "100.0", "2.00", "250", "1.50", "2.00"],
        ["other 1.2", "the file", "0", "none", "60.0", "-", "250", "1.00", "3.00"],
        ["other 1.2", "the file", "0", "tokens 5", "30.0", "0.50", "250", "1.00", "3.00"],
    ]
    shown = "text 1, token 3: ` !x` (7), with drafts `\\n'` (9)"
    assert rows[8:] == [
        ["trtla 1.2", "0", "lookahead auto", "0 of 2", "0", "-"],
        ["other 1.2", "0", "tokens 5", "1 of 2", "1", shown],
    ]
    assert "- Without drafts other is ahead in tokens/s: 60.0 against 50.0." in text
    assert "- With drafts other is ahead in load, s: 1.00 against 1.50." in text
    assert "ahead in memory" not in text
    assert "other/bin/python -m pip install other==1.2" in text
    assert text.count("scripts/compared_engines.py trtla m.gguf") == 2
    assert "ahead in every column" not in page([{**DOCUMENT, "arms": DOCUMENT["arms"][:2]}])
    assert "vllm is not here: it needs 9 GB of memory, 4 are free." in text


def test_a_single_round_shows_no_speeds() -> None:
    arms = [{**arm, "rounds": arm["rounds"][:1]} for arm in DOCUMENT["arms"]]
    text = page([{**DOCUMENT, "rounds": 1, "arms": arms}])
    assert "texts alone" in text
    assert "tokens/s |" not in text
    assert " is ahead" not in text
    assert [row[3] for row in cells(text) if row[1] == "0"] == ["0 of 2", "1 of 2"]


def test_a_text_that_ends_early_differs_where_it_ends() -> None:
    assert differences([A, B, A], [A, B[:2], [5, 6, 7, 7]]) == [(1, 2, 8, None), (2, 3, None, 7)]


ECHO = """
import json, sys
print('{"version": "7", "load_s": 0.5}', flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    ids = (asked["ids"] * asked["tokens"])[: asked["tokens"]]
    print(json.dumps({"ids": ids, "seconds": 2, "first_s": 1}), flush=True)
print('{"peak_bytes": 9}')
"""


def test_a_round_is_a_process_that_answers_each_prompt() -> None:
    tried = compared.Arm("other", {}, [sys.executable, "-c", ECHO])
    tried.run([[3], [4]], 2)
    answers = [{"ids": ids, "seconds": 2, "first_s": 1} for ids in ([3, 3], [4, 4])]
    assert tried.version == "7"
    assert tried.rounds == [{"load_s": 0.5, "peak_bytes": 9, "answers": answers}]
    ends = compared.Arm(
        "other", {}, [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    )
    with pytest.raises(compared.LeftOutError, match="ended with 1: no such model"):
        ends.run([[3]], 2)
    assert not ends.rounds


LEAVES = """
print('{"version": "7", "load_s": 0.5}', flush=True)
"""


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (ECHO.replace("[: asked", "[1: asked"), r"answered \[2\] where 2 tokens"),
        (ECHO.replace("[: asked", "[0: 0 * asked"), r"answered \[\] where 2 tokens"),
        (ECHO.replace('= (asked["ids"]', "= ([-1]"), r"answered \[-1, -1\] where 2 tokens"),
        (LEAVES, "ended with 0: it said nothing"),
    ],
)
def test_an_engine_that_does_not_answer_as_asked_is_left_out(program: str, reason: str) -> None:
    tried = compared.Arm("other", {}, [sys.executable, "-c", program])
    with pytest.raises(compared.LeftOutError, match=reason):
        tried.run([[3] * 100_000], 2)
    assert not tried.rounds


LLAMA_SERVER = """#!{python}
import http.server, json, sys
if "--version" in sys.argv:
    print("version: 77 (abc)")
    sys.exit()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({{"status": "ok"}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert "--spec-type ngram-mod" in " ".join(sys.argv)
        assert asked["return_tokens"] and asked["ignore_eos"] and not asked["cache_prompt"]
        tokens = (asked["prompt"] * asked["n_predict"])[:asked["n_predict"]]
        self.answer({{"tokens": tokens, "timings": {{"prompt_ms": 1}}}})
    def answer(self, what):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(what).encode())
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_a_llama_server_is_asked_for_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "llama-server"
    words = [sys.executable, "scripts/compared_engines.py", "llama-server", "m", "--threads", "1"]
    tried = compared.Arm("llama-server", {}, [*words, "--draft", '{"spec-type": "ngram-mod"}'])
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(compared.LeftOutError, match="there is no llama-server on the PATH"):
        tried.run([[3]], 2)
    program.write_text(LLAMA_SERVER.format(python=sys.executable))
    program.chmod(0o755)
    tried.run([[3], [4]], 2)
    assert tried.version == "77 (abc)"
    assert [answer["ids"] for answer in tried.rounds[0]["answers"]] == [[3, 3], [4, 4]]
    assert tried.rounds[0]["answers"][0]["first_s"] == 0.001
    assert tried.rounds[0]["peak_bytes"] > 1_000_000


def test_an_engine_without_memory_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(bytes(1000))
    monkeypatch.setattr(compared, "available_memory", lambda: 5000)
    plain, drafted, _, sampled = compared.arms_of("trtla", file, 3)
    assert plain.command[2:] == ["trtla", str(file), "--threads", "3"]
    assert drafted.command[-2:] == ["--draft", '{"lookahead": "auto"}']
    assert sampled.command[-2:] == ["--temperature", "0.7"]
    assert compared.shown_command(plain) == (
        "trtla/bin/python scripts/compared_engines.py trtla m.gguf --threads 3"
    )
    with pytest.raises(compared.LeftOutError, match=r"it needs .* GB of memory"):
        compared.arms_of("transformers", file, 3)


@pytest.mark.deep
def test_trtla_is_measured_with_and_without_drafts(tmp_path: Path) -> None:
    tokens = byte_vocabulary()
    model = make_model(Variant("", {"vocab_size": len(tokens), "max_position_embeddings": 8192}))
    tokenizer = {**BYTE_LEVEL, "tokens": tokens, "merges": ["a b"]}
    file = write_gguf(model, tmp_path / "m.gguf", tokenizer=tokenizer)
    command = [sys.executable, "scripts/compared.py", str(file), "--engines", "trtla"]
    few = ["--texts", "3", "--tokens", "5", "--threads", "1", "--prompts", "code"]
    done = subprocess.run([*command, *few], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [len(one["rounds"]) for one in document["arms"]] == [2] * 4
    greedy, _, sampled, _ = (
        [answer["ids"] for answer in one["rounds"][0]["answers"]] for one in document["arms"]
    )
    assert [len(ids) for ids in greedy] == [5, 5, 5]
    assert greedy != sampled
    last = cells(page([document]))[-2:]
    assert [row[1] for row in last] == ["0", "0.7"]
    assert [row[3:5] for row in last] == [["0 of 3", "0"]] * 2
    refused = subprocess.run(
        [*command, "--texts", "999"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "name more with --prompts FILE" in refused.stderr
