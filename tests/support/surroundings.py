"""What whoever starts the suite could have set otherwise: signals, umask, environment, threads."""

from __future__ import annotations

import os
import signal

KEPT = {
    *("TRTLA_MARCH", "TRTLA_WHEELS", "TRTLA_PASSED"),
    *("TRTLA_UPDATE_DOCS", "TRTLA_UPDATE_TRACES"),
    *("TRTLA_VLLM_PYTHON", "TRTLA_VLLM_MODEL", "TRTLA_SGLANG_PYTHON"),
}
"""Names that a caller sets for the suite: level, wheels to test, what has passed, docs and traces
to renew, and for tests in vLLM and SGLang their Pythons and a model."""
_PREFIXES = ("TRTLA_", "LC_", "HF_", "TRANSFORMERS_", "OMP_", "MKL_", "SLURM_", "OMPI_", "XDG_")
_NAMES = (
    *("LANGUAGE", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"),
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONWARNINGS", "PYTHONHASHSEED"),
    *(
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONOPTIMIZE",
        "PYTHONDEVMODE",
        "PYTHONSAFEPATH",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
    ),
)
_SET = {
    "LANG": "C.UTF-8",
    "TERM": "xterm",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "TRTLA_FIXED_COSTS": "1",  # what is drafted depends on no clock
}


def settle() -> None:
    """Give this process, and those that it starts, the same surroundings whoever started it.

    Workers of pytest-xdist inherit the environment that their parent has settled.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _settle_environment()
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        if signal.getsignal(number) == signal.SIG_IGN:  # as in a job of `nohup ... &`
            own = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, own)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _settle_environment() -> None:
    for name in list(os.environ):
        if name not in KEPT and (name in _NAMES or name.startswith(_PREFIXES)):
            del os.environ[name]
    os.environ.update(_SET)
    if not os.path.exists("/dev/nvidiactl"):  # no GPU: kernels are interpreted
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
