"""A model of transformers that decodes as a peer: by generate, with any of its options.

It gets the same ids, threads and device as the engine, and the type that is fastest for it.
Forwards are counted and timed by hooks on the model, tokens by a streamer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from trtla.data.prompt_sets import Ids
from trtla.formats.transformers_load import load_model
from trtla.measuring.arms import ArmRun, Meter, Options
from trtla.runtime.device import Device
from trtla.runtime.threads import set_torch_threads
from trtla.settings.sampling import SamplingParams

_TRIES = 2
"""Timed forwards of each type, by which the peer's type is chosen."""


class _Clock(BaseStreamer):
    """A streamer that notes when tokens came: (seconds, tokens of a request so far)."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._start = time.perf_counter()
        self._prompt = True
        self.seen: list[tuple[float, int]] = [(0.0, 0)]

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt first, then the tokens of each step."""
        if self._prompt:
            self._prompt = False
            return
        count = self.seen[-1][1] + value.numel() // self._batch_size
        self.seen.append((time.perf_counter() - self._start, count))

    def end(self) -> None:
        """Take the end of the output, which needs no note."""

    def when(self, count: int) -> float:
        return next((s for s, seen in self.seen if seen >= count), self.seen[-1][0])


class HuggingFace:
    """A transformers model, ready for all its arms.

    Args:
        dtypes: types to compute in, the narrowest first; the fastest of them is kept.
        end_ids: tokens that end a text; None: the model's.
    """

    def __init__(
        self,
        folder: str,
        device: Device,
        dtypes: Sequence[str],
        end_ids: frozenset[int] | None = None,
    ) -> None:
        set_torch_threads()
        types: list[torch.dtype] = [getattr(torch, dtype) for dtype in dtypes]
        self.model = _fastest(load_causal(folder, torch.device(str(device)), types[0]), types)
        self._meter = Meter()
        self.model.register_forward_pre_hook(self._before, with_kwargs=True)
        self.model.register_forward_hook(lambda *_: self._meter.end())
        eos = self.model.generation_config.eos_token_id
        listed = eos if isinstance(eos, list) else [eos] * (eos is not None)
        self._end_ids = sorted(listed if end_ids is None else end_ids)
        self._weight_bytes = _weight_bytes(self.model)

    def decode(
        self,
        prompts: Sequence[Ids],
        sampling: Sequence[SamplingParams],
        options: Options = MappingProxyType({}),
        assistant: Any = None,
    ) -> ArmRun:
        """Call generate once, padded on the left; `options` are added to its configuration."""
        ids, mask = _padded(prompts, self.model.device)
        ends = [*self._end_ids, *sampling[0].stop_ids]
        config = _generation(sampling[0], ends, options)
        self.model.generation_config = config  # fills the fields that a config omits
        torch.manual_seed(sampling[0].seed)
        self._meter = Meter()
        clock = _Clock(len(prompts))
        start = time.perf_counter()
        with torch.inference_mode():
            texts = self.model.generate(
                ids,
                attention_mask=mask,
                generation_config=config,
                streamer=clock,
                assistant_model=assistant,
            )
        rows = texts[:, ids.shape[1] :].tolist()
        time_s = time.perf_counter() - start
        outputs = [_until_end(row, ends) for row in rows]
        return self._meter.run(
            outputs,
            self._meter.seconds if self.model.device.type == "cpu" else None,
            time_s=time_s,
            first_s=(clock.when(1),) * len(outputs),
            last_s=tuple(clock.when(len(row)) for row in outputs),
            weight_bytes=self._weight_bytes,
        )

    def _before(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self._meter.begin(kwargs["input_ids"].numel())


def load_causal(folder: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Load the causal language model of a folder."""
    hint = "give a Hugging Face model folder"
    return load_model("AutoModelForCausalLM", folder, dtype, hint).to(device)


def _fastest(model: Any, dtypes: Sequence[torch.dtype]) -> Any:
    """Return the model in the type in which a forward of one token takes the least time."""
    if len(dtypes) == 1:
        return model
    token, best = torch.zeros((1, 1), dtype=torch.long, device=model.device), {}
    for dtype in dtypes:
        model, seconds = model.to(dtype), []
        for _ in range(_TRIES + 1):  # the first one is slower
            start = time.perf_counter()
            with torch.inference_mode():
                model(token, use_cache=False)
            seconds.append(time.perf_counter() - start)
        best[dtype] = min(seconds)
    return model.to(min(best, key=best.__getitem__))


def _weight_bytes(model: Any) -> int:
    """Count the bytes of weights that a forward reads; of an input embedding only rows are."""
    size: int = sum(weight.nbytes for weight in model.parameters())
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return size if inputs is outputs else size - int(inputs.nbytes)


def _padded(prompts: Sequence[Ids], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(p)) + list(p) for p in prompts]
    mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _generation(
    sampling: SamplingParams, end_ids: Sequence[int], options: Options
) -> GenerationConfig:
    drawn: dict[str, Any] = {}
    if not sampling.greedy:
        drawn = {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
        }
    settings: dict[str, Any] = {
        "max_new_tokens": sampling.max_output_len,
        "do_sample": not sampling.greedy,
        "eos_token_id": list(end_ids) or None,
        "pad_token_id": min(end_ids, default=0),
        **drawn,
        **options,
    }
    return GenerationConfig.from_dict(settings)


def _until_end(row: Sequence[int], end_ids: Sequence[int]) -> Ids:
    """Return the ids up to and including the first end id: a batch is padded after it."""
    end = next((i for i, token in enumerate(row) if token in end_ids), len(row))
    return tuple(row[: end + 1])
