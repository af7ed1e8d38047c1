"""llama.cpp as a peer: `generate` of llama-cpp-python, plain and with its prompt lookup.

It runs a GGUF file as it is, or dequantised by llama.cpp itself. Forwards are counted and timed
around `Llama.eval`.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from trtla.data.prompt_sets import Ids
from trtla.errors import TrtlaError, UsageError, sentence
from trtla.extras.bench.peers import (
    INSTALL_LLAMA_CPP,
    LLAMA_CPP_CONVERTED,
    LLAMA_CPP_LOOKUP,
    LOOKUP_TOKENS,
)
from trtla.formats.config import DTYPES
from trtla.formats.gguf.header import Header, read_header
from trtla.formats.gguf.weights import PLAIN
from trtla.measuring.arms import Arm, ArmRun, Meter, Options, PeerArm
from trtla.runtime.device import Device
from trtla.runtime.threads import num_threads
from trtla.settings.sampling import SamplingParams

_GRAIN = 256
"""Contexts are multiples of this many tokens."""
_LOG_ERROR = 4
"""GGML_LOG_LEVEL_ERROR of ggml.h."""
_FILE_TYPES = {"float32": "ALL_F32", "float16": "MOSTLY_F16", "bfloat16": "MOSTLY_BF16"}


def _library() -> Any:
    try:
        library = importlib.import_module("llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:
        raise TrtlaError(
            f"llama-cpp-python does not load: {sentence(error)}", INSTALL_LLAMA_CPP
        ) from None
    library.llama_log_set(_log_callback(library), None)
    return library


@cache
def _log_callback(library: Any) -> Any:
    """llama.cpp's errors go to stderr, the rest nowhere; cached, since C keeps no reference."""

    @library.llama_log_callback  # type: ignore[untyped-decorator]
    def callback(level: int, text: bytes, _: Any) -> None:
        if level == _LOG_ERROR:
            print(text.decode(errors="replace"), end="", file=sys.stderr)

    return callback


class LlamaCpp:
    """A GGUF file in llama.cpp, ready for its arms.

    Args:
        end_ids: tokens that end a text.
        dtype: the type to which weights are dequantised first; None: they run as they are.
    """

    def __init__(
        self, file: Path, device: Device, end_ids: frozenset[int], dtype: str | None = None
    ) -> None:
        self._library, self._device, self._end_ids = _library(), device, end_ids
        if device.type == "cuda" and not self._library.llama_supports_gpu_offload():
            raise UsageError(
                "llama-cpp-python is built without CUDA here, and the benchmark runs on a GPU",
                "reinstall it with CMAKE_ARGS=-DGGML_CUDA=ON, or use --device cpu",
            )
        self._file = file
        if dtype is not None:
            self._folder = TemporaryDirectory(prefix="trtla-bench-")  # lives as long as this object
            self._file = Path(self._folder.name, "model.gguf")
            _dequantise(self._library, file, self._file, dtype)
        header = read_header(self._file)
        self.weight_type, self._weight_bytes = _weight_type(header), _read_bytes(header)
        amx = b"AMX_INT8 = 1" in self._library.llama_print_system_info()
        self.without_amx = amx and self.weight_type not in DTYPES
        """True: quantised products do without AMX, which kills the process (llama.cpp #20824)."""
        self._opened: dict[bool, Any] = {}

    def decode(
        self, prompts: Sequence[Ids], sampling: Sequence[SamplingParams], options: Options
    ) -> ArmRun:
        """Decode one prompt; with options by llama-cpp-python's prompt lookup."""
        prompt, params, output, seen = prompts[0], sampling[0], list[int](), list[float]()
        ends = {*self._end_ids, *params.stop_ids}
        room = len(prompt) + params.max_output_len + max(LOOKUP_TOKENS) + 1
        model = self._model(room, drafting=bool(options))
        if options:
            model.draft_model = _lookup()(**options)
        self._library.llama_set_n_threads(model.ctx, *[num_threads()] * 2)
        model.reset()  # it would continue a prefix that it knows
        model.set_seed(params.seed % 2**31)
        with _metered(self._library, model) as meter:
            start = time.perf_counter()
            for token in model.generate(
                list(prompt), params.top_k, params.top_p, min_p=0.0, temp=params.temperature
            ):
                output.append(int(token))
                seen.append(time.perf_counter() - start)
                if token in ends or len(output) == params.max_output_len:
                    break
        return meter.run(
            [tuple(output)],
            meter.seconds,
            time_s=seen[-1],
            first_s=(seen[0],),
            last_s=(seen[-1],),
            weight_bytes=self._weight_bytes,
        )

    def _model(self, room: int, *, drafting: bool) -> Any:
        """Return a `Llama` with a context of this many tokens; drafting keeps all logits."""
        model = self._opened.get(drafting)
        if model is None or model.n_ctx() < room:
            if model is not None:
                model.close()
            model = self._opened[drafting] = self._open(-(-room // _GRAIN) * _GRAIN, drafting)
        return model

    def _open(self, room: int, drafting: bool) -> Any:
        library, on_gpu = self._library, self._device.type == "cuda"
        try:
            with self._safe_kernels():
                return library.Llama(
                    str(self._file),
                    n_gpu_layers=-1 if on_gpu else 0,
                    split_mode=library.LLAMA_SPLIT_MODE_NONE,
                    main_gpu=self._device.index or 0,
                    n_ctx=room,
                    n_batch=room,
                    offload_kqv=on_gpu,
                    op_offload=on_gpu,
                    draft_model=_lookup()() if drafting else None,
                    verbose=False,
                )
        except (ValueError, RuntimeError) as error:
            raise TrtlaError(f"llama.cpp cannot run {self._file}: {sentence(error)}") from None

    @contextmanager
    def _safe_kernels(self) -> Iterator[None]:
        """Disable AMX if it would crash; `Llama` has no argument for that."""
        inner = self._library.llama_cpp
        params = inner.llama_model_default_params()
        params.use_extra_bufts = not self.without_amx
        with patch.object(inner, "llama_model_default_params", lambda: params):
            yield


def _lookup() -> Any:
    return importlib.import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding


@contextmanager
def _metered(library: Any, model: Any) -> Iterator[Meter]:
    """Count and time the forwards of a `Llama`."""
    meter, inner = Meter(), model.eval

    def timed(tokens: Sequence[int]) -> None:
        meter.begin(len(tokens))
        inner(tokens)
        library.llama_synchronize(model.ctx)
        meter.end()

    model.eval = timed
    try:
        yield meter
    finally:
        del model.eval  # the class's own again


def _dequantise(library: Any, source: Path, target: Path, dtype: str) -> None:
    params = library.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = getattr(library, f"LLAMA_FTYPE_{_FILE_TYPES[dtype]}"), 1
    if library.llama_model_quantize(str(source).encode(), str(target).encode(), params):
        raise TrtlaError(
            f"llama.cpp cannot write {source} in {dtype}",
            "let TMPDIR name a folder with room for the weights",
        )


def _weight_type(header: Header) -> str:
    """Return the type of most weights, such as bfloat16, or the file's own type, such as Q4_K_M."""
    import gguf

    try:
        known = gguf.LlamaFileType(header.metadata.get("general.file_type"))
        kind = known.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        sizes: Counter[str] = Counter()
        for info in header.tensors.values():
            sizes[info.type] += prod(info.shape)
        kind = sizes.most_common(1)[0][0]
    return str(PLAIN.get(kind, kind)).removeprefix("torch.")


def _read_bytes(header: Header) -> int:
    """Count the bytes of weights that a forward reads; of an input embedding only rows are."""
    tensors = dict(header.tensors)
    if "output.weight" in tensors:
        tensors.pop("token_embd.weight")
    return sum(info.shape[0] * info.row_bytes for info in tensors.values())


def llama_cpp_arms(
    names: Sequence[str],
    file: Path,
    device: Device,
    end_ids: frozenset[int],
    dtype: str,
    on_note: Callable[[str], None],
) -> list[Arm]:
    """Make the named peers; `llama.cpp-converted` dequantises to `dtype`."""
    lookups: list[Options] = [{"num_pred_tokens": number} for number in LOOKUP_TOKENS]

    @cache
    def opened(converted: bool) -> LlamaCpp:
        inner = LlamaCpp(file, device, end_ids, dtype if converted else None)
        if inner.without_amx:
            on_note("llama.cpp runs without AMX, whose kernels crash with such weights")
        return inner

    arms = list[Arm]()
    for name in names:
        inner = opened(name == LLAMA_CPP_CONVERTED)
        choices = lookups if name == LLAMA_CPP_LOOKUP else ({},)
        kind = inner.weight_type
        plain = kind if kind in DTYPES else None
        arms.append(PeerArm(name, inner.decode, choices, weight_type=kind, compute_type=plain))
    return arms
