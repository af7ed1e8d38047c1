"""A model that llama.cpp has loaded, and its K/V cache, by its C functions in llama-cpp-python."""

from __future__ import annotations

import ctypes
import importlib
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtla.bench.arms import INSTALL_LLAMA_CPP
from trtla.errors import TrtlaError, UsageError, sentence
from trtla.files import temporary_folder
from trtla.formats.config import DTYPES
from trtla.formats.gguf.folder import weight_file
from trtla.formats.gguf.header import Header, read_header
from trtla.formats.gguf.weights import PLAIN
from trtla.formats.tensors import torch_dtype

if TYPE_CHECKING:
    import torch

    from trtla.formats.engine import Engine

_LOG_ERROR = 4
"""GGML_LOG_LEVEL_ERROR of ggml.h."""
_FLOAT32, _NO_FLASH_ATTENTION = 0, 0
"""GGML_TYPE_F32 of ggml.h, LLAMA_FLASH_ATTN_TYPE_DISABLED of llama.h (from 0.3.17)."""

_CPU = 0
"""GGML_BACKEND_DEVICE_TYPE_CPU of ggml-backend.h."""
_REPACKED = ("Q4_0", "Q4_K")
"""The block types of a GGUF file that ggml repacks for AVX2, which a processor with AMX has."""


def _library() -> Any:
    try:
        library = importlib.import_module("llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:
        raise TrtlaError(
            f"llama-cpp-python does not load: {sentence(error)}", INSTALL_LLAMA_CPP
        ) from None
    if not hasattr(library, "llama_memory_seq_rm"):
        raise TrtlaError(f"llama-cpp-python {library.__version__} is too old", INSTALL_LLAMA_CPP)
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


@dataclass(frozen=True, slots=True)
class _Weights:
    """A file that llama.cpp loads."""

    path: Path
    name: str
    """How errors call it."""
    header: Header

    @property
    def type(self) -> str:
        """Of most weights, such as bfloat16 or Q4_K_M; as the file calls itself, where it does."""
        import gguf

        try:
            known = gguf.LlamaFileType(self.header.metadata.get("general.file_type"))
            kind = known.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        except ValueError:
            sizes: Counter[str] = Counter()
            for info in self.header.tensors.values():
                sizes[info.type] += prod(info.shape)
            kind = sizes.most_common(1)[0][0]
        return str(PLAIN.get(kind, kind)).removeprefix("torch.")

    @property
    def nbytes(self) -> int:
        """Of the weights that a forward reads: of an embedding that is no output, only rows are."""
        tensors = dict(self.header.tensors)
        if "output.weight" in tensors:
            tensors.pop("token_embd.weight")
        return sum(info.shape[0] * info.row_bytes for info in tensors.values())


@contextmanager
def _weights(engine: Engine, dtype: torch.dtype, *, converted: bool) -> Iterator[_Weights]:
    """The file that the engine was read from; if there is none, or if asked, one made of it.

    Args:
        converted: make one, and dequantise what is in blocks.
    """
    file = None if converted else weight_file(engine.path)
    if file is not None:
        yield _Weights(file, str(file), read_header(file))
        return
    with _written(engine, dtype, keep_blocks=not converted) as path:
        yield _Weights(path, engine.name, read_header(path))


class Model:
    """The weights, freed with the object."""

    def __init__(
        self, engine: Engine, device: torch.device, dtype: torch.dtype, *, converted: bool
    ) -> None:
        self.library = _library()
        self.on_gpu = device.type == "cuda"
        if self.on_gpu and not self.library.llama_supports_gpu_offload():
            raise UsageError(
                "llama-cpp-python is built without CUDA here, and the benchmark runs on a GPU",
                "reinstall it with CMAKE_ARGS=-DGGML_CUDA=ON, or use --device cpu",
            )
        params = self.library.llama_model_default_params()
        params.n_gpu_layers = 10_000 if self.on_gpu else 0
        params.split_mode = self.library.LLAMA_SPLIT_MODE_NONE
        params.main_gpu = device.index or 0
        amx_crashes = b"AMX_INT8 = 1" in self.library.llama_print_system_info()
        params.use_extra_bufts = not amx_crashes
        with _weights(engine, dtype, converted=converted) as found:  # open, it outlives its name
            path = str(found.path).encode()
            if amx_crashes:
                overrides = _repacked(self.library, found.header)  # kept until the file is loaded
                params.tensor_buft_overrides = ctypes.addressof(overrides)
            self.pointer = self.library.llama_model_load_from_file(path, params)
        if not self.pointer:
            raise TrtlaError(f"llama.cpp cannot load {found.name}", "see its message above")
        weakref.finalize(self, self.library.llama_model_free, self.pointer)
        self.type, self.nbytes = found.type, found.nbytes
        self.without_amx = amx_crashes and self.type not in DTYPES
        """Whether quantised products leave AMX out: it kills the process (llama.cpp #20824)."""


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override of llama.h."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


def _repacked(library: Any, header: Header) -> Any:
    """Where tensors lie that llama.cpp itself would repack if it did not prefer AMX.

    The list ends with an empty entry; without a buffer for repacked weights it is that alone.
    """
    buffer = _repack_buffer(library)
    names = [
        name.replace(".", "[.]").encode()
        for name, info in header.tensors.items()
        if info.type in _REPACKED and not info.shape[0] % 8 and name.startswith("blk.")
    ]
    chosen = [_Override(name, buffer) for name in names] if buffer else []
    return (_Override * (len(chosen) + 1))(*chosen)


def _repack_buffer(library: Any) -> int | None:
    """ggml's buffer type of repacked weights, which is no part of llama.h; None: there is none."""
    library.llama_backend_init()
    ggml, pointer = library.llama_cpp._lib, ctypes.c_void_p

    def call(name: str, result: Any, *arguments: Any) -> Any:
        function = ctypes.CFUNCTYPE(result, *map(type, arguments))((name, ggml))
        return function(*arguments)

    device = pointer(call("ggml_backend_dev_by_type", pointer, ctypes.c_int(_CPU)))
    registry = pointer(call("ggml_backend_dev_backend_reg", pointer, device))
    asked = ctypes.c_char_p(b"ggml_backend_dev_get_extra_bufts")
    address = call("ggml_backend_reg_get_proc_address", pointer, registry, asked)
    if not address:
        return None
    types = ctypes.CFUNCTYPE(ctypes.POINTER(pointer), pointer)(address)(device)
    found: dict[bytes, int] = {}
    for kind in types if types else ():
        if not kind:
            break
        found[call("ggml_backend_buft_name", ctypes.c_char_p, pointer(kind))] = kind
    return found.get(b"CPU_REPACK")


@contextmanager
def _written(engine: Engine, dtype: torch.dtype, *, keep_blocks: bool) -> Iterator[Path]:
    from trtla.bench.gguf_file import write_gguf

    with ExitStack() as stack:
        try:
            path = stack.enter_context(temporary_folder(prefix="trtla-bench-")) / "model.gguf"
            write_gguf(path, engine, dtype, keep_blocks=keep_blocks)
        except OSError as error:
            raise TrtlaError(
                f"the GGUF file for llama.cpp cannot be written: {sentence(error)}",
                "let TMPDIR name a folder with room for the weights",
            ) from None
        yield path


class Context:
    """Keys and values of one text; counts and times the forwards. Freed with the object."""

    def __init__(self, model: Model, room: int) -> None:
        self._model, self._library, self.room = model, model.library, room
        self.pointer = self._library.llama_init_from_model(model.pointer, self._params())
        if not self.pointer:
            raise TrtlaError(f"llama.cpp has no room for {room} tokens", "see its message above")
        weakref.finalize(self, self._library.llama_free, self.pointer)
        self._memory = self._library.llama_get_memory(self.pointer)
        self._batch = self._library.llama_batch_init(room, 0, 1)
        weakref.finalize(self, self._library.llama_batch_free, self._batch)

    def _params(self) -> Any:
        from trtla.bench.gguf_file import ggml_type

        params = self._library.llama_context_default_params()
        params.n_ctx = params.n_batch = self.room
        if self._model.type in DTYPES:  # with quantised weights llama.cpp's own choice
            params.type_k = params.type_v = int(ggml_type(torch_dtype(self._model.type)))
        params.offload_kqv = params.op_offload = self._model.on_gpu
        if params.type_k == _FLOAT32:
            # Its flash attention rounds to half precision on the way, also between float32 tensors.
            params.flash_attn_type = _NO_FLASH_ATTENTION
        return params

    def start(self, threads: int) -> None:
        """Forget the text and the counts."""
        self._library.llama_set_n_threads(self.pointer, threads, threads)
        self._library.llama_memory_clear(self._memory, False)
        self.forwards, self.fed, self.seconds = 0, 0, 0.0

    def cut(self, length: int) -> None:
        """Forget what stands behind so many tokens."""
        self._library.llama_memory_seq_rm(self._memory, 0, length, -1)

    def feed(self, tokens: Sequence[int], position: int, rows: int) -> None:
        """One forward; the last `rows` tokens get logits."""
        batch, count = self._batch, len(tokens)
        batch.n_tokens = count
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index] = token, position + index
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
            batch.logits[index] = index >= count - rows
        start = time.perf_counter()
        failed = self._library.llama_decode(self.pointer, batch)
        self._library.llama_synchronize(self.pointer)
        self.seconds += time.perf_counter() - start
        if failed:
            raise TrtlaError(f"llama_decode of llama.cpp failed with {failed}")
        self.fed += count if self.forwards else 0  # the first one is the prefill
        self.forwards += 1
