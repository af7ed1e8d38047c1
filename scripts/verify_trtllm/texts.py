"""Greedy texts of an engine against plain decoding on torch, prompt by prompt.

Makes the checkpoint and the engines that it is not given. Texts may part where the two best logits
are closer than the arithmetic resolves: exit code 0 when all are equal, 3 when they part at such
places alone, 1 otherwise. The table is texts.md in the folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import trtla
from trtla import LLM, Completion, LookaheadConfig, SamplingParams
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.build.quantize import Calibration
from trtla.formats.engine_limits import BuildSettings
from trtla.results.run import divergence
from trtla.settings.executor import TrtllmSettings
from trtla.settings.lookahead import AUTOREGRESSIVE

TINY = Path(trtla.__file__).parent / "assets" / "tiny-llama"
ROUNDING = {"float16": 0.05, "w8a16": 0.05, "w4a16_awq": 0.05}
"""Largest top-2 logit margin at which a parting counts as rounding, by type of weights."""
COARSE = 0.4
"""That of bfloat16, which is 8 times coarser than float16, and of FP8's activations."""
SHORT_PROMPTS = ("x", "import")
"""Below N - 1 tokens: they run with a smaller n-gram."""
SMALLER = ((2, 2, 1), (3, 4, 2), (1, 2, 0), (7, 7, 7), (4, 5, 3), (1, 1, 0))

Open = Callable[..., LLM]
Rows = list[tuple[list[int], str | None, str, float]]
"""Ids, text, why it ended, and tokens of a step."""


def prompts() -> list[str]:
    """The shipped prompts, and two short ones."""
    lines = (TINY.parent / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [*(json.loads(line)["text"] for line in lines), *SHORT_PROMPTS]


def qwen2(folder: Path) -> Path:
    """A random Qwen2 with the small model's tokenizer; large weights keep its texts off ties."""
    import shutil

    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(1)
    sizes = {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=2048, bos_token_id=0, eos_token_id=0, **sizes, **heads)
    )
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.normal_(float("norm" in name), 0.1 if "norm" in name else 0.07)
    model.half().save_pretrained(folder)
    for path in TINY.glob("*token*.json"):
        shutil.copy(path, folder)
    return folder


def checkpoint_of(given: argparse.Namespace) -> Path:
    """The model in the type of weights asked for."""
    model = qwen2(given.folder / "model") if given.model == "qwen2" else TINY
    calibration = _calibration(model) if given.dtype == "fp8" else None
    dtype = "float16" if given.dtype == "fp8" else given.dtype
    return convert(
        model, given.folder / "checkpoint", dtype=dtype, calibration=calibration, force=True
    )


def _calibration(model: Path) -> Calibration:
    from trtla.llm.text import Tokenizer

    tokenizer = Tokenizer(model)
    return Calibration([tokenizer.encode(text) for text in prompts()])


def engine_of(given: argparse.Namespace, checkpoint: Path, backend: str) -> Path:
    """An engine of the checkpoint."""
    settings = BuildSettings(given.lookahead, max_batch_size=8, max_input_len=256, max_seq_len=512)
    folder = given.folder / backend
    return build_engine(checkpoint, folder, settings, backend=backend, force=True).path


def plain_texts(given: argparse.Namespace, checkpoint: Path) -> tuple[str, list[Completion]]:
    """What decides: plain decoding on the torch executor, with its margins."""
    engine = engine_of(given, checkpoint, "torch")
    with LLM(engine, device=given.device, dtype=given.torch_dtype) as llm:
        sampling = SamplingParams(max_output_len=given.max_output_len)
        return llm.description, llm.generate(prompts(), sampling, AUTOREGRESSIVE, margins=True)


def decoded(given: argparse.Namespace, engine: Path) -> Iterable[tuple[str, Rows]]:
    """The engine's texts, a list for every run that was asked for."""
    sampling = SamplingParams(max_output_len=given.max_output_len)
    for name in given.runs:
        settings = TrtllmSettings(
            kv_cache_free_gpu_memory_fraction=0.2,
            kv_cache_enable_block_reuse=name == "block_reuse",
        )
        with LLM(engine, trtllm=settings) as llm:
            yield name, [_row(one) for one in RUNS[name](llm, sampling)]


def _row(one: Completion) -> tuple[list[int], str | None, str, float]:
    return list(one.output_ids), one.text, one.finish_reason, one.stats.tokens_per_step


def _triples(llm: LLM, sampling: SamplingParams) -> list[Completion]:
    return llm.generate(prompts(), sampling, [LookaheadConfig(*triple) for triple in SMALLER])


def _twice(llm: LLM, sampling: SamplingParams) -> list[Completion]:
    llm.generate(prompts(), sampling)
    return llm.generate(prompts(), sampling)


RUNS: dict[str, Callable[[LLM, SamplingParams], list[Completion]]] = {
    "lookahead": lambda llm, sampling: llm.generate(prompts(), sampling),
    "plain": lambda llm, sampling: llm.generate(prompts(), sampling, AUTOREGRESSIVE),
    "triples": _triples,
    "block_reuse": _twice,
    "sampled": lambda llm, sampling: llm.generate(
        prompts(), replace(sampling, temperature=0.8, top_k=20, seed=1)
    ),
}


def written(path: Path) -> Iterable[tuple[str, Rows]]:
    """The outputs of a `trtla run --json`."""
    text = path.read_text(encoding="utf-8")
    results = json.loads(text[text.index("{") :])["results"]
    names = ("output_ids", "text", "finish_reason", "tokens_per_step")
    yield "lookahead", [tuple(one[name] for name in names) for one in results]


def compare(
    name: str, rows: Rows, plain: list[Completion], rounding: float
) -> tuple[int, list[str]]:
    """The worst exit code of the rows, and a line of the table for each."""
    worst, lines = 0, []
    for index, (row, reference) in enumerate(zip(rows, plain, strict=True)):
        code, cells = (
            judged(row, reference, rounding) if name != "sampled" else drawn(row, reference)
        )
        worst = 1 if 1 in (worst, code) else max(worst, code)
        shown = [str(index), name, str(len(row[0])), f"{row[3]:.2f}", *cells]
        lines.append(f"| {' | '.join(shown)} |")
    return worst, lines


def judged(row: Any, plain: Completion, rounding: float) -> tuple[int, list[str]]:
    """0: equal; 3: parts at a near tie; 1: parts elsewhere. And the last cells of its line."""
    ids, text, reason, _ = row
    ours = replace(plain, token_ids=tuple(ids), text=text or "", finish_reason=reason)
    found = divergence(ours, plain)
    if found is None:
        return 0, ["yes", "-", "-"]
    near = found.margin is not None and found.margin < rounding
    margin = "-" if found.margin is None else f"{found.margin:.4f}"
    return 3 if near else 1, ["no", str(found.position), margin]


def drawn(row: Any, plain: Completion) -> tuple[int, list[str]]:
    """A drawn text has to be there, and nothing else can be said of it."""
    return (0 if row[0] else 1), ["drawn", "-", "-"]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", choices=["tiny-llama", "qwen2"], default="tiny-llama")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--lookahead", type=_triple, default=LookaheadConfig(7, 7, 7))
    parser.add_argument(
        "--runs", type=lambda names: names.split(","), default=["lookahead", "plain"]
    )
    parser.add_argument("--max-output-len", type=int, default=64)
    parser.add_argument("--engine", type=Path, help="compare this one, which is there")
    parser.add_argument("--outputs", type=Path, help="compare these, of trtla run --json")
    parser.add_argument("--write-prompts", action="store_true", help="that, and nothing else")
    parser.add_argument("--device", default="auto", help="of the torch executor")
    parser.add_argument("--torch-dtype", default="auto", help="of the torch executor")
    return parser.parse_args(arguments)


def _triple(text: str) -> LookaheadConfig:
    return LookaheadConfig(*map(int, text.split(",")))


def main() -> int:
    """Compare, and write the table."""
    given = parse()
    if given.write_prompts:
        lines = (json.dumps({"text": text}) + "\n" for text in prompts())
        (given.folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
        return 0
    checkpoint = checkpoint_of(given)
    description, plain = plain_texts(given, checkpoint)
    table = [
        f"Reference: {description}, plain decoding.", "",
        "| prompt | run | tokens | tokens/step | equal to torch | parts at | top-2 margin |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    codes = []
    runs = written(given.outputs) if given.outputs else decoded(given, _engine(given, checkpoint))
    for name, rows in runs:
        code, lines = compare(name, rows, plain, ROUNDING.get(given.dtype, COARSE))
        codes.append(code)
        table += lines
    (given.folder / "texts.md").write_text("\n".join([*table, ""]), encoding="utf-8")
    print("\n".join(table))
    return 1 if 1 in codes else max(codes)


def _engine(given: argparse.Namespace, checkpoint: Path) -> Path:
    return given.engine or engine_of(given, checkpoint, "tensorrt-llm")


if __name__ == "__main__":
    sys.exit(main())
