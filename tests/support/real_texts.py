"""Texts that real models wrote, with the most probable tokens at each place, as recorded ids.

`python -m tests.support.real_texts MODEL NAME` writes `tests/runtime/real_texts/NAME.npz`
from a Hugging Face folder: `trtla/assets/tiny-llama` for `tiny-llama`, one of
`HuggingFaceTB/SmolLM2-135M-Instruct` for `smollm2`. The prompts are those of `trtla/assets`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray

from trtla.runtime.draft import TopRows
from trtla.runtime.tree.library import READ
from trtla.settings.sampling import SamplingParams

FOLDER = Path(__file__).parents[1] / "runtime" / "real_texts"
_ASSETS = Path(__file__).parents[2] / "trtla" / "assets"
_PROMPTS = {  # set: lines of it
    "smollm2": {"summarization": 4, "chat": 4, "code": 4, "functions": 4},
    "tiny-llama": {"code": 6},
}
_LENGTH = 96
_UNIT = 256.0  # of logarithms, as the tree's rows keep them


@dataclass(frozen=True)
class RealText:
    """A prompt and what the model wrote after it."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    sampling: SamplingParams
    ids: ndarray
    """The most probable tokens at each place of the output; `logs` are their log probabilities."""
    logs: ndarray

    def rows(self, place: int, path: Sequence[int]) -> TopRows:
        """The rows from a place of the output on: of the input token and of a draft's nodes."""
        stop = place + len(path) + 1
        return TopRows((0, *path), self.ids[place:stop], self.logs[place:stop], len(path))


def real_texts(name: str) -> tuple[int, list[RealText]]:
    """The vocabulary's size and the recorded texts of a model."""
    with np.load(FOLDER / f"{name}.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}
    ids = np.ascontiguousarray(arrays["ids"].astype(np.int32))
    logs = np.ascontiguousarray((arrays["logs"] / -_UNIT).astype(np.float32))
    texts, prompt, output = [], 0, 0
    for prompt_len, output_len, heat, seed in arrays["requests"].tolist():
        ends = prompt + int(prompt_len), output + int(output_len)
        texts.append(
            RealText(
                tuple(arrays["prompts"][prompt : ends[0]].tolist()),
                tuple(arrays["outputs"][output : ends[1]].tolist()),
                SamplingParams(temperature=heat, seed=int(seed)),
                ids[output : ends[1]],
                logs[output : ends[1]],
            )
        )
        prompt, output = ends
    return int(arrays["vocab"]), texts


def _prompts(name: str) -> Iterator[tuple[str | list[dict[str, str]], SamplingParams]]:
    """Texts and chats, the last of every four sampled."""
    for kind, count in _PROMPTS[name].items():
        lines = (_ASSETS / "bench" / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(map(json.loads, lines[:count])):
            turns = line.get("turns")
            prompt = [{"role": "user", "content": turns[0]}] if turns else line["text"]
            heat = 0.7 if number % 4 == 3 else 0.0
            yield prompt, SamplingParams(max_output_len=_LENGTH, temperature=heat, seed=number)


def record(model: str, name: str) -> None:
    """Have a model write, and keep its texts and rows."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trtla import LLM
    from trtla.settings.drafting import NO_DRAFTER

    tokenizer = AutoTokenizer.from_pretrained(model)
    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    prompts, outputs, requests, ids, logs = [], [], [], [], []
    with LLM(model, dtype="float32", device="cpu") as llm:
        for prompt, params in _prompts(name):
            tokens = _encoded(tokenizer, prompt)
            (done,) = llm.generate([tokens], [params], drafter=NO_DRAFTER)
            written = list(done.output_ids)
            with torch.no_grad():
                logits = target(torch.tensor([tokens + written])).logits[0, len(tokens) - 1 : -1]
            top = logits.log_softmax(-1).topk(READ)
            prompts += tokens
            outputs += written
            requests.append((len(tokens), len(written), params.temperature, params.seed))
            ids.append(top.indices.numpy())
            logs.append((top.values * -_UNIT).clamp(0, 65534).round().numpy())
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(
        FOLDER / f"{name}.npz",
        vocab=target.config.vocab_size,
        prompts=np.array(prompts, np.uint16),
        outputs=np.array(outputs, np.uint16),
        requests=np.array(requests),
        ids=np.concatenate(ids).astype(np.uint16),
        logs=np.concatenate(logs).astype(np.uint16),
    )


def _encoded(tokenizer, prompt: str | Sequence[dict[str, str]]) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer.encode(prompt))
    chat = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
    return list(chat["input_ids"])


if __name__ == "__main__":
    record(*sys.argv[1:])
