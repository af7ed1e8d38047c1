"""Models opened to be measured.

An `LLM` that is opened here loses its tokenizer, so that no arm pays for text while it is timed,
and its end ids where texts go on behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtla.bench.arms import Note
from trtla.data.encoder import Encoder, plain_answers
from trtla.data.prompt_sets import Ids, Question, prompt_room
from trtla.errors import UsageError
from trtla.settings.executor import ENGINE_OPTIONS, ExecutorOptions
from trtla.settings.messages import AS_TEXT, Asking
from trtla.settings.sampling import SamplingParams

if TYPE_CHECKING:
    import torch

    from trtla.llm.llm import LLM
    from trtla.llm.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What models are opened with; one after the other for each device and type."""

    model: str
    options: ExecutorOptions = ENGINE_OPTIONS
    """Of all models, but for device, type, threads and batch size."""
    devices: tuple[str, ...] = ("auto",)
    dtypes: tuple[str, ...] = ("auto",)
    threads: tuple[int, ...] = ()
    """Empty: PyTorch's own number."""
    sampling: SamplingParams
    """The output's length and the first seed; what is measured has its own filters."""
    ignore_eos: bool = True
    batch_sizes: tuple[int, ...] = (1,)
    asking: Asking = AS_TEXT
    """Whether texts are put into the chat template."""

    def open(self, device: str, dtype: str) -> LLM:
        """The model on a device and in a type."""
        from trtla.llm.llm import LLM

        size = max(self.batch_sizes)
        options = replace(self.options, device=device, dtype=dtype, max_batch_size=size)
        return LLM(self.model, options)


class OpenedModel:
    """An `LLM` from which measuring takes over; it is used for nothing else.

    Args:
        setup: what the model was opened with.
        device: what it was opened on.
        dtype: the type that was wanted; auto is the engine's.
    """

    def __init__(self, llm: LLM, setup: Setup, device: torch.device, dtype: str) -> None:
        from trtla.runtime.models.load import resolve_dtype

        self.llm, self._setup, self.device = llm, setup, device
        self.checkpoint = llm.engine.config.pretrained_config
        self.dtype = resolve_dtype(dtype, self.checkpoint.dtype, self.device)
        self.tokenizer = take_tokenizer(llm)
        self._ends = llm.end_ids
        if setup.ignore_eos:
            llm.end_ids = frozenset()

    @property
    def dtype_name(self) -> str:
        """Such as `bfloat16`."""
        return str(self.dtype).removeprefix("torch.")

    def prompts(
        self,
        questions: Sequence[Question],
        sampling: SamplingParams,
        on_note: Note,
        of: str = "",
    ) -> list[Ids]:
        """All turns as ids, cut to their room; first turns are answered here for the later ones.

        Args:
            sampling: of the answers; the prompt at place i has seed + i.
            of: whose prompts they are, for notes.
        """
        encoder = Encoder(self.tokenizer, self._setup.asking, self.room)
        answer = plain_answers(self.llm, self.tokenizer, sampling, self._ends)
        if any(len(one.turns) > 1 for one in questions):
            on_note(f"plain decoding answers the first turns{of}, which the second ones continue")
        found = encoder.questions(questions, answer)
        if encoder.cut:
            on_note(f"{encoder.cut} prompts{of} are cut to {self.room} tokens")
        return found

    @property
    def room(self) -> int:
        """Tokens that a prompt may have; raises `UsageError` where there are none."""
        return prompt_room(self.llm.limits, self._setup.sampling.max_output_len)


def take_tokenizer(llm: LLM) -> Tokenizer:
    """The model's tokenizer, taken away from it: no arm pays for text."""
    tokenizer, llm.tokenizer = llm.tokenizer, None
    if tokenizer is None:
        raise UsageError(
            f"{llm.engine.name} has no tokenizer files", "give them with --tokenizer-dir"
        )
    return tokenizer
