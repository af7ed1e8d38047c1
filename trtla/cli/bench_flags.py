"""What `trtla bench` was asked for, as click parsed it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtla.cli.drafter_options import DrafterFlags
from trtla.cli.options import TrtllmFlags

if TYPE_CHECKING:
    from trtla.lookahead import Lookahead


@dataclass(frozen=True)
class BenchFlags(DrafterFlags, TrtllmFlags):
    """The command's flags, each under its own name."""

    engine_dir: str
    tokenizer_dir: str | None
    lookahead: tuple[Lookahead, ...]
    compare: tuple[str, ...]
    hf_model_dir: str | None
    assistant_dir: str | None
    prompts: tuple[str, ...]
    categories: tuple[str, ...]
    num_prompts: int
    device: tuple[str, ...]
    dtype: tuple[str, ...]
    threads: tuple[int, ...]
    batch_size: tuple[int, ...]
    prompt_len: tuple[int, ...]
    temperature: tuple[float, ...]
    processor: tuple[str, ...]
    """Empty: not given."""
    max_output_len: int
    top_k: int
    top_p: float
    seed: int
    ignore_eos: bool
    rounds: int
    output_format: str
    drafter: tuple[str, ...]
