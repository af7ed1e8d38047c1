"""Candidate trees in transformers: `model.generate(**inputs, custom_generate=generate)`.

transformers prepares inputs, cache, processors and criteria as always and calls `generate` for the
loop. A step feeds the last token and a draft of each row; what the target chooses after each node
decides. The rows of a batch stay equally long, so all go on by what the least accepted one does.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.generation.utils import GenerationMixin

from trtla.errors import TrtlaError, UsageError
from trtla.extras.hosts.attention import CacheEnd
from trtla.extras.hosts.decoding import SEEDS, Choice, DecodingRun, ModelState
from trtla.settings.fields import shown, whole
from trtla.settings.lookahead import LookaheadConfig

_models: WeakKeyDictionary[Any, ModelState] = WeakKeyDictionary()
_lock = threading.Lock()
_DRAFTERS = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")
"""Keys of its configuration that make `generate` draft by itself."""


def _known(model: Any) -> ModelState:
    with _lock:
        if model not in _models:
            _models[model] = ModelState(model)
        return _models[model]


def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    seed: int | None = None,
    lookahead: LookaheadConfig | Sequence[int] | str | None = None,
    drafts: bool = True,
    **model_kwargs: Any,
) -> Any:
    """Decode with drafts of candidate trees: pass it to transformers as `custom_generate`.

    Greedy texts are those of `model.generate`, as far as the model's arithmetic gives a token the
    same logits whatever is fed beside it. Sampled ones depend on the seed alone: drafts never
    change them. Models whose cache does not go back decode without drafts.

    Args:
        seed: of sampling; by default drawn from torch's generator, as `torch.manual_seed` has it.
        lookahead: a triple (W, N, G): draft with lookahead's window and pool; `auto`: the tree.
        drafts: False decodes without drafts.

    Raises:
        UsageError: an encoder-decoder, beams, another mode than greedy and sampling, or two
            drafters.
    """
    called = _arguments()
    streamer = model_kwargs.pop("streamer", None) or called.get("streamer")
    triple = _triple(lookahead, drafts)
    if seed is not None:
        seed = whole("seed", seed, "a whole number from -2**63 to 2**63", -SEEDS, SEEDS)
    _check(model, generation_config)
    _check_alone(generation_config, called.get("assistant_model"))
    if generation_config.do_sample and seed is None:
        seed = int(torch.randint(SEEDS - 1, ()))
    known = _known(model)
    end = CacheEnd.of(model_kwargs.get("past_key_values"))
    places = model_kwargs.get("position_ids")
    in_space = places is not None and places.dim() > 2  # of images as well as of texts
    if end is None or in_space or (end.is_static and not known.takes_positions):
        return _plain(model, input_ids, logits_processor, stopping_criteria, generation_config,
                      seed, {**model_kwargs, "streamer": streamer})  # fmt: skip
    layout = known.layout(model) if drafts else None
    end = end.whole() if layout else end
    model_kwargs["past_key_values"] = end.cache
    if triple is not None and not (layout and end.moves):
        raise UsageError(
            f"lookahead {triple} feeds a tree, and {type(model).__name__} takes no tree mask here",
            "omit lookahead: chains are drafted, or load with attn_implementation='sdpa'",
        )
    choice = Choice(logits_processor, stopping_criteria, generation_config, seed, streamer)
    run = DecodingRun(model, known, end, choice, input_ids, model_kwargs)
    run.decode(layout if end.moves else None, triple, drafts)
    return run.result()


def _triple(lookahead: Any, drafts: Any) -> LookaheadConfig | None:
    """The triple that drafts; None: the tree does, or nothing."""
    triple = None if lookahead in (None, "auto") else LookaheadConfig.parse(lookahead)
    if not isinstance(drafts, bool):
        raise UsageError(f"drafts is {shown(drafts)}, neither True nor False", "give one of both")
    if lookahead is not None and not drafts:
        raise UsageError(
            f"lookahead is {shown(lookahead)}, and drafts=False decodes without drafts",
            "omit one of both",
        )
    return triple


def _arguments() -> dict[str, Any]:
    """Return the arguments of the call of `model.generate`, which hands on only some of them."""
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return dict(frame.f_locals) if frame is not None else {}


def _check(model: Any, config: Any) -> None:
    """Refuse what has no drafts."""
    if not hasattr(model, "_prefill") or not hasattr(DynamicCache, "activate_past_recording"):
        raise TrtlaError(
            f"transformers {version('transformers')} has no cache that goes back",
            "use a release from 5.20 on",
        )
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise UsageError(
            f"{name} is an encoder-decoder, and custom_generate=generate drafts for decoders",
            "omit custom_generate",
        )
    if config.num_beams > 1:
        raise UsageError(
            f"num_beams is {config.num_beams}, and beams are not drafted for",
            "use num_beams=1, or omit custom_generate",
        )
    if config.get_generation_mode() not in ("greedy_search", "sample", "assisted_generation"):
        raise UsageError(
            f"{config.get_generation_mode().value} is neither greedy decoding nor sampling",
            "omit custom_generate",
        )
    if config.return_dict_in_generate and (config.output_attentions or config.output_hidden_states):
        raise UsageError(
            "output_attentions and output_hidden_states are not collected from drafted steps",
            "omit them, or custom_generate",
        )


def _check_alone(config: Any, assistant: Any) -> None:
    """Refuse another drafter of `model.generate`."""
    others = {name: getattr(config, name, None) for name in _DRAFTERS}
    for name, value in {"assistant_model": assistant, **others}.items():
        if value:
            raise UsageError(
                f"{name} drafts, and custom_generate=generate drafts as well",
                "pass one of both",
            )


def _plain(
    model: Any, ids: Tensor, processor: Any, criteria: Any, config: Any, seed: int | None,
    model_kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """Decode without drafts in transformers' own loop."""
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        return model._sample(
            ids, logits_processor=processor, stopping_criteria=criteria, generation_config=config,
            **model_kwargs,
        )  # fmt: skip
