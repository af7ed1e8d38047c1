#!/usr/bin/env python3
"""The table of docs/structured.md: what a grammar among the drafts' sources brings.

    .venv/bin/python scripts/structured_bench.py MODEL [--batch-size 8] [--temperature 0.7]

Plain decoding, `auto` without the source `grammar` and `auto` decode the 60 prompts of
structured_prompts.jsonl in turns, all under the same masks: 40 ask for JSON, 20 for a call of a
tool. With --llama-cpp a GGUF file also runs in llama-cpp-python with `json_schema`, one prompt at a
time. Finished texts are checked against their schemas.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

from trtla import LLM
from trtla.api.tool_formats import HERMES
from trtla.api.tools import Function
from trtla.data.prompt_sets import Ids, batches
from trtla.extras.bench.ways import PLAIN
from trtla.machine import cpu
from trtla.measuring.arms import Arm, ArmRun, EngineArm, Meter
from trtla.measuring.turns import Work, alternate
from trtla.results.metrics import add, agreement
from trtla.runtime.device import CPU
from trtla.runtime.threads import num_threads
from trtla.settings.drafting import LOOKAHEAD, SOURCES, DraftOptions
from trtla.settings.grammar import Grammar
from trtla.settings.sampling import SamplingParams

PROMPTS = Path(__file__).with_name("structured_prompts.jsonl")
WITHOUT = tuple(name for name in SOURCES if name != "grammar")
COLUMNS = (
    "arm",
    "tokens/s",
    "over plain",
    "ms/token",
    "S",
    "host ms a step",
    "finished",
    "valid",
    "as plain",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt, the grammar of its text, and the schema of the JSON in it."""

    category: str
    text: str
    grammar: Grammar
    schema: Mapping[str, Any]

    def is_valid(self, text: str) -> bool:
        """Return whether a finished text holds what the schema says."""
        inside = text.strip().removeprefix(HERMES.mark).removesuffix(HERMES.close)
        try:
            return validator(json.dumps(self.schema)).is_valid(json.loads(inside))
        except ValueError:
            return False


@cache
def validator(schema: str) -> Any:
    """The checks of a schema, formats with them."""
    return jsonschema_rs.validator_for(json.loads(schema), validate_formats=True)


def read_cases(categories: Sequence[str], most: int, blanks: str | None = None) -> list[Case]:
    """The cases of the file, at most so many of each category.

    Args:
        blanks: the `whitespace_pattern` of their JSON.
    """
    lines = map(json.loads, PROMPTS.read_text(encoding="utf-8").splitlines())
    made = [_of_schema(line, blanks) if "schema" in line else _of_tools(line) for line in lines]
    return [case for name in categories for case in [c for c in made if c.category == name][:most]]


def _of_schema(line: Mapping[str, Any], blanks: str | None) -> Case:
    """A text as `response_format` has it: the schema is no part of the prompt."""
    schema = line["schema"]
    grammar = Grammar.of({"json_schema": schema, "whitespace_pattern": blanks})
    return Case(line["category"], line["text"], grammar, schema)


def _of_tools(line: Mapping[str, Any]) -> Case:
    """A call as the server forces it with `tool_choice` required, in the format of Hermes."""
    tools = line["tools"]
    grammar = HERMES.grammar(
        [Function(**tool) for tool in tools],
        state="answering",
        must=True,
        several=False,
        control=lambda name: None,
    )
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["name"]}, "arguments": tool["parameters"]},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    text = f"Call one of these functions.\n{json.dumps(tools)}\n\n{line['text']}"
    return Case(line["category"], text, grammar, {"anyOf": calls})


class LlamaCppSchema(Arm):
    """llama.cpp with a JSON schema, one prompt at a time."""

    name = "llama.cpp"

    def __init__(self, model: str, room: int, cases: Mapping[Ids, Case], end_ids: set[int]) -> None:
        import llama_cpp

        self._grammar = cache(
            lambda schema: llama_cpp.LlamaGrammar.from_json_schema(schema, verbose=False)
        )
        self._cases, self._end_ids, threads = cases, end_ids, num_threads()
        self._llama = llama_cpp.Llama(
            model,
            n_ctx=room,
            n_batch=room,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def decode(self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams]) -> ArmRun:
        """Decode the prompts, one after the other."""
        return add(map(self._one, prompts, sampling))

    def _one(self, prompt: Ids, params: SamplingParams) -> ArmRun:
        llama, seen, output = self._llama, list[float](), list[int]()
        schema = json.dumps(self._cases[prompt].schema)
        grammar = self._grammar(schema.replace(r"\\.", "[.]"))  # its patterns have no "\."
        llama.reset()  # it would continue a prompt that it knows
        llama.set_seed(params.seed)
        start = time.perf_counter()
        heat = params.temperature
        for token in llama.generate(
            prompt, top_k=0, top_p=1.0, min_p=0.0, temp=heat, grammar=grammar
        ):
            output.append(token)
            seen.append(time.perf_counter() - start)
            if token in self._end_ids or len(output) == params.max_output_len:
                break
        times = {"time_s": seen[-1], "first_s": (seen[0],), "last_s": (seen[-1],)}
        return Meter(len(output)).run([tuple(output)], None, **times)


class Bench:
    """A model and its prompts; every cell decodes them by all arms.

    Args:
        most_tokens: of an output.
    """

    def __init__(self, llm: LLM, cases: Sequence[Case], most_tokens: int) -> None:
        assert llm.tokenizer is not None
        self._llm, self._tokenizer, self._most, self._end_ids = (
            llm,
            llm.tokenizer,
            most_tokens,
            set(llm.end_ids),
        )
        message = [[{"role": "user", "content": case.text}] for case in cases]
        self._cases = dict(zip(map(llm.tokenizer.prompt_ids, message), cases, strict=True))
        self.arms: list[Arm] = [
            PLAIN.arm(llm),
            EngineArm(llm, "auto", LOOKAHEAD, "auto without it", DraftOptions(sources=WITHOUT)),
            EngineArm(llm, "auto", LOOKAHEAD, "auto", DraftOptions()),
        ]

    def add_llama_cpp(self, file: str) -> None:
        """Have llama.cpp decode this file as well."""
        room = max(map(len, self._cases)) + self._most
        self.arms.append(LlamaCppSchema(file, room, self._cases, self._end_ids))

    def cell(self, category: str, batch_size: int, temperature: float) -> Iterator[list[str]]:
        """Decode the prompts of a category and yield a row of the table for each arm."""
        prompts = [ids for ids, case in self._cases.items() if case.category == category]
        base = SamplingParams(self._most, temperature=temperature)
        params = {
            ids: replace(base, grammar=self._cases[ids].grammar, seed=seed)
            for seed, ids in enumerate(prompts)
        }
        work = [(some, [params[ids] for ids in some]) for some in batches(prompts, batch_size)]
        arms = [arm for arm in self.arms if batch_size == 1 or isinstance(arm, EngineArm)]
        for arm in arms:
            arm.warm_up(*work[0])
            arm.begin_round()
        runs: dict[str, list[ArmRun]] = {arm.name: [] for arm in arms}
        for arm, run in alternate(arms, self._compiled(work), CPU):
            runs[arm.name].append(run)
        order = [ids for some, _ in work for ids in some]
        whole = {name: add(each) for name, each in runs.items()}
        for name, run in whole.items():
            yield self._row(name, run, whole["ar"], order)

    def _compiled(self, work: Sequence[Work]) -> Iterator[Work]:
        """The batches; grammars are compiled before the first arm, which would pay for all."""
        for prompts, sampling in work:
            for params in sampling:
                self._llm.grammar_start(params, "a prompt")
            yield prompts, sampling

    def _row(self, name: str, run: ArmRun, plain: ArmRun, order: Sequence[Ids]) -> list[str]:
        done = [pair for pair in zip(order, run.outputs, strict=True) if self._ends(pair[1])]
        valid = sum(
            self._cases[ids].is_valid(self._tokenizer.decode(out[:-1])) for ids, out in done
        )
        host, equal = run.host_ms_per_step, agreement(run, plain)["equal_texts"]
        return [
            "plain" if name == "ar" else name,
            f"{run.tokens_per_s:.1f}",
            f"{run.tokens_per_s / plain.tokens_per_s:.2f}",
            f"{run.ms_per_token:.2f}",
            f"{run.tokens_per_step:.2f}",
            "-" if host is None else f"{host:.2f}",
            f"{len(done)} of {len(order)}",
            f"{valid} of {len(done)}",
            "-" if name == "llama.cpp" else f"{equal} of {len(order)}",
        ]

    def _ends(self, output: Ids) -> bool:
        return output[-1] in self._end_ids


def main() -> None:
    """Print a table for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    parser.add_argument("--categories", nargs="+", default=["schemas", "tools"])
    parser.add_argument("--num-prompts", type=int, default=40, help="most of a category")
    parser.add_argument("--max-output-len", type=int, default=160)
    parser.add_argument("--whitespace-pattern", help="of the JSON in the category schemas")
    parser.add_argument("--llama-cpp", action="store_true", help="measure it too, in batches of 1")
    asked = parser.parse_args()
    cases = read_cases(asked.categories, asked.num_prompts, asked.whitespace_pattern)
    print(f"{cpu()}, {num_threads()} threads, {Path(asked.model).name}")
    with LLM(asked.model, device="cpu", max_batch_size=max(asked.batch_size)) as llm:
        bench = Bench(llm, cases, asked.max_output_len)
        if asked.llama_cpp:
            bench.add_llama_cpp(asked.model)
        for size in asked.batch_size:
            for heat in asked.temperature:
                for category in asked.categories:
                    print(f"\n{category}, batch {size}, temperature {heat:g}\n")
                    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
                    for row in bench.cell(category, size, heat):
                        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
