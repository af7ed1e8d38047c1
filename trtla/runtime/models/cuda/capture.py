"""Records a forward as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch


class CudaCapture:
    """A `Capture` into graphs that share one pool of memory, since they never run at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            # PyTorch's own is the first device's; cuBLAS keeps a workspace for every stream.
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._in_use = False
        """Whether a graph lives in the pool."""

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Run once on a stream of its own (kernels are compiled then), and record a second run.

        What fails leaves the stream as it was; other threads may use the device meanwhile.
        """
        with torch.cuda.device(self._device):
            before = torch.cuda.current_stream()
            self._warm_up(run)
            graph = torch.cuda.CUDAGraph()
            try:
                mode = "thread_local"
                with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode=mode):
                    run()
            except BaseException:
                self._leave(before)
                raise
            self._in_use = True
            return graph.replay

    def _warm_up(self, run: Callable[[], None]) -> None:
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)

    def _leave(self, before: torch.cuda.Stream) -> None:
        """Do what `torch.cuda.graph` leaves undone where the end of a capture fails."""
        torch.cuda.set_stream(before)
        with suppress(Exception):  # private, and not in every release
            torch._C._cuda_endAllocateToPool(before.device_index, self._pool)
        if not self._in_use:  # PyTorch captures nothing into a pool whose graphs are all gone
            self._pool = torch.cuda.graph_pool_handle()
