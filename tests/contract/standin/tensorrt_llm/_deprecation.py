"""The notice that late releases give in every entry point of the TensorRT backend.

TensorRT-LLM _deprecation.py, since February 2026. The copies read warn with FutureWarning.
"""

from __future__ import annotations

import warnings

from ._version import at_least


def emit_engine_arch_deprecation(caller_name: str) -> None:
    """Warn that the engine workflow is deprecated; releases before 1.2.1 say nothing."""
    if not at_least(1, 2):
        return
    line = "=" * 70
    warnings.warn(
        f"\n{line}\nDEPRECATION WARNING: {caller_name}\n{line}\n"
        "This script is part of the legacy TensorRT engine-build workflow,\n"
        "which is deprecated and will be removed in a future release.\n",
        FutureWarning,
        stacklevel=2,
    )
