"""On which GPUs and for which models TensorRT-LLM's lookahead kernels exist.

Read in its attention kernels (attentionOp.cpp, decoderMaskedMultiheadAttention, xqaDispatcher.cpp)
as releases 0.20 to 1.2 have them. Rules only: it looks at no machine and no file.
"""

from __future__ import annotations

from dataclasses import dataclass

Capability = tuple[int, int]
"""A GPU's compute capability, such as (9, 0)."""

MIN_CAPABILITY = (8, 0)
FP8_CAPABILITY = (8, 9)
HEAD_SIZES = (64, 128)
"""Head sizes that come with compiled kernels."""
JIT_MULTIPLE, JIT_LARGEST = 16, 256
"""Other head sizes, where the release compiles kernels as it runs."""
MAX_QUERY_GROUP = 32
"""Query heads for one K/V head."""
DTYPES = ("float16", "bfloat16")

_NEWEST_SEEN = (9, 0)
_JIT = (
    "TensorRT-LLM compiles kernels for it only on Hopper with an FP8 K/V cache, or in late releases"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something can run."""

    allowed: bool | None
    """None: not verified."""
    reason: str = ""

    @property
    def word(self) -> str:
        """yes, no or unverified."""
        return "unverified" if self.allowed is None else "yes" if self.allowed else "no"


_YES = Verdict(True)


def lookahead_on(capability: Capability | None) -> Verdict:
    """Lookahead decoding in TensorRT-LLM on a GPU."""
    if capability is None:
        return Verdict(None, "its compute capability is not known")
    shown = show(capability)
    if capability < MIN_CAPABILITY:
        return Verdict(False, f"compute capability {shown} is below {show(MIN_CAPABILITY)}")
    if capability[0] == 10:
        missing = "which has no kernels for speculative decoding"
        return Verdict(False, f"compute capability {shown} is Blackwell, {missing}")
    if capability > _NEWEST_SEEN:
        return Verdict(None, f"compute capability {shown}: NVIDIA skips its lookahead test there")
    return _YES


def fp8_on(capability: Capability | None) -> bool | None:
    """FP8 weights or K/V cache in TensorRT-LLM on a GPU; None where it is not known."""
    return None if capability is None else capability >= FP8_CAPABILITY


def head_size(size: int) -> Verdict:
    """A model's head size."""
    if size in HEAD_SIZES:
        return _YES
    if size % JIT_MULTIPLE == 0 and size <= JIT_LARGEST:
        return Verdict(None, f"head_size {size}: {_JIT}")
    return Verdict(False, f"head_size {size} has no kernel; {_shown_sizes()} have")


def query_group(heads: int, kv_heads: int) -> Verdict:
    """A model's query heads for one K/V head."""
    if heads <= kv_heads * MAX_QUERY_GROUP:
        return _YES
    return Verdict(
        False,
        f"{heads} query heads on {kv_heads} K/V heads are more than {MAX_QUERY_GROUP} for each",
    )


def activations(dtype: str) -> Verdict:
    """A model's dtype."""
    if dtype in DTYPES:
        return _YES
    return Verdict(False, f"dtype is {dtype}, its kernels take {' and '.join(DTYPES)}")


def rope_scaling(kind: str) -> Verdict:
    """A model's rotary scaling, also for plain engines (functional.py)."""
    if kind != "dynamic":
        return _YES
    return Verdict(
        False,
        "rope scaling dynamic cannot be built with TensorRT-LLM: from 1.1 on it is another formula "
        "there, which reads a key alpha",
    )


def show(capability: Capability) -> str:
    """`9.0`."""
    return f"{capability[0]}.{capability[1]}"


def _shown_sizes() -> str:
    return " and ".join(map(str, HEAD_SIZES))
