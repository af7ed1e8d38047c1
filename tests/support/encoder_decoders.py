"""Tiny random models of the T5 family: folders, and what transformers says of them."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.support.tokenizers import save_byte_tokenizer
from trtla.formats.engine import open_encoder_decoder
from trtla.formats.engine_limits import BuildSettings
from trtla.runtime.draft import NoDrafter
from trtla.runtime.drafters.draft_model import DraftModelDrafters
from trtla.runtime.drafters.factory import Drafters
from trtla.runtime.limits import ExecutorLimits
from trtla.runtime.loop.executor import TorchExecutor
from trtla.runtime.models.t5 import T5Model, load_t5
from trtla.runtime.request import Request
from trtla.runtime.sequence import Sequence as Running
from trtla.settings.drafting import DrafterSettings, DraftOptions
from trtla.settings.lookahead import AUTOREGRESSIVE, LookaheadConfig

KINDS = ("T5", "T5-1.1", "MT5", "UMT5")
VOCAB = 48
PROMPTS = ((5, 6, 7, 8, 9, 5, 6, 7), (11, 2, 3), (40,) * 17, (9,))
"""Of different lengths; without token 0, which transformers takes for padding."""


def theirs(kind: str, seed: int = 1, **changes: Any) -> Any:
    """transformers' model, with weights that make lively texts."""
    import transformers

    name = kind.partition("-")[0]
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "d_model": 32,
        "d_kv": 6,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
    }
    if kind == "T5-1.1":
        sizes |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    config = getattr(transformers, f"{name}Config")(**(sizes | changes))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.normal_(1.0, 0.2) if "norm" in key else weight.normal_(0.0, 0.4)
    return model


@functools.cache
def folder(kind: str, seed: int = 1, noise: float = 0.0) -> Path:
    """A saved model; with noise it is near the one without, but not the same."""
    path = Path(tempfile.mkdtemp(prefix="trtla-t5-"))
    model = theirs(kind, seed)
    if noise:
        torch.manual_seed(99)
        with torch.no_grad():
            for weight in model.parameters():
                weight += noise * torch.randn_like(weight)
    model.save_pretrained(path)
    return path


@functools.cache
def greedy_texts(kind: str, count: int) -> list[tuple[int, ...]]:
    """What transformers generates for `PROMPTS`, past any end token, without the start token."""
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder(kind), dtype=torch.float32)
    return [generate(model, prompt, count) for prompt in PROMPTS]


def generate(model: Any, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """transformers' greedy text of one prompt."""
    ids = torch.tensor([list(prompt)])
    mask = torch.ones_like(ids)
    # Without its cache, which is as long as the encoder has layers, whatever the decoder has.
    lengths = {"min_new_tokens": count, "max_new_tokens": count, "use_cache": False}
    model.generation_config.eos_token_id = None
    found = model.generate(
        ids, attention_mask=mask, do_sample=False, eos_token_id=None, pad_token_id=0, **lengths
    )
    return tuple(found[0].tolist()[1:])


def load(path: Path, dtype: torch.dtype = torch.float64) -> T5Model:
    """A folder's model on the CPU."""
    return load_t5(
        open_encoder_decoder(path, BuildSettings(AUTOREGRESSIVE)), dtype, torch.device("cpu")
    )


def executor(
    model: T5Model,
    vocab: int,
    settings: DrafterSettings,
    draft: T5Model | None = None,
    *,
    max_batch_size: int = 3,
    lookahead: LookaheadConfig = AUTOREGRESSIVE,
    max_text_len: int = 64,
) -> TorchExecutor:
    """A `TorchExecutor` in the model's own type; the draft model is called `small`."""
    sizes = (max_batch_size, max_text_len, max_text_len, 256, vocab, lookahead)
    limits = ExecutorLimits(
        *sizes, drafter=settings, draft_models=("small",), max_encoder_len=max_text_len
    )
    models = {}
    if draft is not None:
        cache = draft.new_cache(4 * max_batch_size)
        models["small"] = DraftModelDrafters(draft, cache, settings, limits)
    drafters = Drafters(limits, DraftOptions(), models)
    return TorchExecutor(model, model.new_cache(8 * max_batch_size), limits, drafters)


END = 256


def make_t5(folder: Path, *, vocab: int = 258, seed: int = 5) -> Path:
    """Ids 0 to 255 are bytes, 256 ends a text, and 257 starts the decoder."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=vocab,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        eos_token_id=END,
        pad_token_id=257,
        decoder_start_token_id=257,
        n_positions=64,
    )
    model = T5ForConditionalGeneration(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0, 0.2) if "norm" in name else weight.normal_(0.0, 0.4)
    model.save_pretrained(folder)
    save_byte_tokenizer(folder, encoder_decoder=True)
    return folder


def sequence(prompt: tuple[int, ...], text: tuple[int, ...], block: int) -> Running:
    """A sequence whose text is prompt for the decoder, in a block of its own."""
    request = Request(block, text, encoder_ids=prompt)
    return Running(request, AUTOREGRESSIVE, NoDrafter(), blocks=(block,))
