"""What Triton would compile for each launch, noted without a GPU; PyTorch computes the results."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, compute_cache_key, create_function_from_signature

from tests.support.paged import fake_capture
from tests.support.tensors import argmax, draw_at
from trtla.runtime.blocks import TOKENS_PER_BLOCK
from trtla.runtime.models import tensor_model
from trtla.runtime.models.cuda import fused, kernels, paged_attention, tree_kernels
from trtla.runtime.models.cuda.fused import FusedOperations
from trtla.runtime.models.cuda.paged_attention import HEADER
from trtla.runtime.models.layers import PlainOperations
from trtla.runtime.sampling import device_kernels
from trtla.runtime.sampling.device import DeviceSampler

_KERNELS = {
    kernels: ("attend_prompts",),
    tree_kernels: ("attend_trees", "attend_paths"),
    fused: ("add_norm", "rotate_write", "silu_mul", "round_fp8", "move_rows"),
    device_kernels: ("choose_rows", "filter_rows"),
}
_PLAIN = PlainOperations()


class Noted:
    """A kernel that computes nothing: every launch leaves the key of what runs on an H100."""

    def __init__(self, kernel, found):
        if not isinstance(kernel, JITFunction):  # interpreted
            kernel = JITFunction(kernel.fn, **kernel.kwargs)
        backend = make_backend(GPUTarget("cuda", 90, 32))
        self._bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        self._name, self._found = kernel.fn.__name__, found

    def __getitem__(self, grid):
        assert all(grid), grid
        return self._note

    def _note(self, *args, **kwargs):
        _, specialization, options = self._bind(*args, **kwargs)
        self._found.add((self._name, compute_cache_key({}, specialization, options)))


class Both(FusedOperations):
    """Launches what fused operations launch, and gives what plain ones compute."""

    def add_norm(self, states, delta, weight, epsilon, scale=None):
        super().add_norm(states, delta, weight, epsilon, scale)
        return _PLAIN.add_norm(states, delta, weight, epsilon, scale)

    def rotate_write(self, qkv, rotary, slots, cache, layer):
        super().rotate_write(qkv, rotary, slots, cache, layer)
        return _PLAIN.rotate_write(qkv, rotary, slots, cache, layer).contiguous()

    def silu_mul(self, gate, up, scale=None):
        super().silu_mul(gate, up, scale)
        return _PLAIN.silu_mul(gate, up, scale)

    def move(self, cache, moves):
        super().move(cache, moves)
        _PLAIN.move(cache, moves)


class BothSampler(DeviceSampler):
    """Launches what a step's choices launch, and gives what PyTorch chooses."""

    def choose(self, logits, draws):
        super().choose(logits, draws)
        drawn = [int(draw_at(logits[d.row : d.row + 1], d.params, [d.noise])) for d in draws]
        return (argmax(logits).tolist() if len(logits) else []), drawn


def attended(queries, keys, values, group, scale=None):
    """What attention over pages computes, a sequence at a time; FP8 caches are not read."""
    out = torch.zeros_like(queries)
    for table in group.sequences if scale is None else ():
        cached, fed, start = table[:HEADER].tolist()
        places = torch.arange(cached + fed)
        slots = table[HEADER:][places // TOKENS_PER_BLOCK] * TOKENS_PER_BLOCK
        slots += places % TOKENS_PER_BLOCK
        rows, nodes = slice(start, start + fed), torch.arange(fed)
        seen = nodes <= nodes[:, None]
        if group.paths is not None:
            depths = (group.positions[rows] - cached).tolist()
            seen = torch.zeros(fed, fed, dtype=torch.bool)
            for node, depth in enumerate(depths):
                seen[node, group.paths[start + node, : depth + 1].long()] = True
        seen = torch.cat((torch.ones(fed, cached, dtype=torch.bool), seen), 1)
        q, k, v = (part.transpose(0, 1) for part in (queries[rows], keys[slots], values[slots]))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        out[rows] = found.transpose(0, 1)
    return out.flatten(1)


@contextmanager
def noted_launches(model):
    """A model runs by the fast path of a GPU of 132 processors: the keys of all launches so far."""
    found = set()
    launched = paged_attention.paged_attend

    def both(*args):
        launched(*args)
        return attended(*args)

    with pytest.MonkeyPatch.context() as patch:
        for module, names in _KERNELS.items():
            for name in names:
                patch.setattr(module, name, Noted(getattr(module, name), found))
        patch.setattr(paged_attention, "paged_attend", both)
        patch.setattr(paged_attention, "_processors", lambda device: 132)
        patch.setattr(tensor_model, "CudaCapture", lambda device: fake_capture)
        changed = {"fast": True, "operations": Both(), "_sampler": BothSampler()}
        for name, value in changed.items():
            patch.setattr(model, name, value)
        yield found
