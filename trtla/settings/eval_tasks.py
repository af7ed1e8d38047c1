"""The tasks of TensorRT-LLM's summarize.py: the columns of their data sets, and their prompts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvalTask:
    """One task: a text to continue and a reference for the output, from a split of a data set."""

    input: str
    """The column of the prompts."""
    reference: str
    """The column of the references."""
    split: str
    folders: tuple[str, ...]
    """Names that the data set's folder may have below the given one."""
    configuration: str | None = None
    """The configuration's name, which may be a folder of the data set's own."""
    suffix: str = ""
    """The end of every prompt."""
    context_only: bool = False
    """Texts have no references: one token is decoded, and the perplexity of the prompt counts."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.input, self.reference)))

    @property
    def lines(self) -> str:
        """The lines of a .jsonl file for the task, as hints show them."""
        return "{" + ", ".join(f'"{name}"' for name in self.columns) + "} lines"

    def prompt(self, text: str) -> str:
        """Return the prompt that summarize.py makes of a text."""
        return (text + self.suffix).strip().replace(" n't", "n't")


SUMMARIZE = "summarize"
EVAL_TASKS = {
    SUMMARIZE: EvalTask(
        "article",
        "highlights",
        "test",
        ("ccdv/cnn_dailymail", "abisee/cnn_dailymail", "cnn_dailymail"),
        "3.0.0",
        suffix=" TL;DR: ",
    ),
    "summarize_long": EvalTask(
        "input", "output", "validation", ("tau/zero_scrolls", "zero_scrolls"), "squality"
    ),
    "code_completion": EvalTask(
        "prompt", "canonical_solution", "test", ("openai/openai_humaneval", "openai_humaneval")
    ),
    "eval_context_ppl": EvalTask("text", "text", "test", ("SlimPajama-6B",), context_only=True),
}
"""The tasks by their names in summarize.py."""
