"""A Hugging Face folder of the T5 family as an engine in memory, with its decoder's limits.

Its weights are read by transformers when the model is loaded, not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from trtla import __version__
from trtla.build.engine_folder import Engine
from trtla.build.settings import BuildSettings, plan_build_config
from trtla.build.t5_config import T5Config, decoder_config, read_t5_config, refuse_to_convert
from trtla.config import EngineConfig
from trtla.lookahead import LookaheadConfig

_LONGEST_SOURCE = 4096
"""Most tokens of an encoder's input. Its attention knows no position limit, but grows with the
square of the length."""


@dataclass(frozen=True)
class EncoderDecoder(Engine):
    """An opened model of the T5 family: prompts go to the encoder, the decoder writes the text."""

    t5: T5Config = field(kw_only=True)

    @property
    def backend(self) -> str:
        """Always `torch`."""
        return "torch"

    @property
    def max_encoder_len(self) -> int:
        """Most tokens of a prompt."""
        return max(_LONGEST_SOURCE, self.t5.n_positions)

    def request_ids(
        self, prompt: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """The decoder's start token, and the prompt for the encoder."""
        return (self.t5.decoder_start_token_id,), prompt

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """None in TensorRT-LLM's layout; raises `UsageError`."""
        raise refuse_to_convert(self.path, self.config.pretrained_config.architecture)


def open_encoder_decoder(folder: Path, lookahead: LookaheadConfig) -> EncoderDecoder:
    """Read the folder's config; the decoder's positions are the limit of start token + output.

    Raises:
        UsageError: config.json is broken, or the triple does not fit.
    """
    t5 = read_t5_config(folder)
    decoder = decoder_config(folder, t5)
    limits = plan_build_config(BuildSettings(lookahead), decoder)
    config = EngineConfig(version=__version__, pretrained_config=decoder, build_config=limits)
    return EncoderDecoder(folder, config, None, in_memory_lookahead=lookahead, t5=t5)
