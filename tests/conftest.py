"""Settings that all tests share: one thread a process, no network, one cache for a run."""

# ruff: noqa: E402 - the surroundings are settled before anything reads them

from __future__ import annotations

import contextlib
import gc
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.support")
from tests.support.examples import share
from tests.support.surroundings import settle
from tests.support.unchanged import leave_out_unchanged, note_passed

settle()

from hypothesis import settings

import trtla
from trtla.errors import is_installed
from trtla.files import user_cache
from trtla.runtime.models.cpu.native_code import FORWARD, TREES, NotCompiled
from trtla.runtime.threads import set_threads
from trtla.trtllm.library import installed

settings.register_profile("trtla", max_examples=share(100), deadline=None, print_blob=True)
settings.load_profile("trtla")


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a user's cache of its own, with the C++ forward in it.

    What a forward costs is measured and kept: not in the user's cache, nor from there. The forward
    is compiled before the workers start, and kept from one run to the next.
    """
    if hasattr(config, "workerinput"):
        return  # a worker inherits its parent's
    folder = tempfile.TemporaryDirectory(prefix="trtla-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    cache = getattr(config, "cache", None)  # none with -p no:cacheprovider
    os.environ["XDG_CACHE_HOME"] = str(cache.mkdir("trtla")) if cache else folder.name
    with contextlib.suppress(NotCompiled):  # then PyTorch's operations run, or the test says why
        for code in (FORWARD, TREES):
            code.compiled()
    made = Path(os.environ["XDG_CACHE_HOME"])
    for library in made.rglob("*.so") if cache else ():
        kept = Path(folder.name, library.relative_to(made))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.symlink_to(library.resolve())
    os.environ["XDG_CACHE_HOME"] = folder.name
    home = Path(folder.name, "home")
    home.mkdir()
    os.environ["HOME"] = str(home)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deep", action="store_true", help="run also the tests marked deep")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Nothing imported or collected is garbage: it is not looked through, then or later.

    A process that only hands tests to others needs no PyTorch, nor does an environment without.
    """
    gc.disable()
    try:
        if not session.config.pluginmanager.has_plugin("dsession"):
            _prepare_torch()
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def _prepare_torch() -> None:
    if is_installed("torch"):
        import torch  # noqa: F401
    set_threads(1)


def _has_cuda() -> bool:
    if not is_installed("torch"):
        return False
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave deep tests out unless they are wanted, and skip what needs a GPU or TensorRT-LLM."""
    cuda = _has_cuda()
    for item in items:
        if item.get_closest_marker("gpu") and not cuda:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("trtllm") and not (cuda and installed()):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device and TensorRT-LLM"))
    leave_out_unchanged(items)
    named = config.option.markexpr or any("::" in argument for argument in config.args)
    if not (config.option.deep or named):
        kept = set(_not_deep(items))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Note what has passed, in the process that has seen all of it."""
    if not hasattr(session.config, "workerinput"):
        note_passed(exitstatus == 0)


def _not_deep(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """`deep(first=2)` keeps two of a test's parameter sets."""
    seen: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        marks = list(item.iter_markers("deep"))
        if all(seen[test] < mark.kwargs.get("first", 0) for mark in marks):
            yield item
        seen[test] += 1


@pytest.fixture(scope="session")
def tiny_llama() -> Path:
    """The folder of the shipped model."""
    return Path(trtla.__file__).parent / "assets" / "tiny-llama"


@pytest.fixture
def measured_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What steps cost is measured and learnt in this test, as it is for users."""
    monkeypatch.delenv("TRTLA_FIXED_COSTS")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache of the test's own, which holds the compiled libraries alone."""
    folder = tmp_path / "own-cache"
    (folder / "trtla").mkdir(parents=True)
    for library in user_cache().glob("*.so"):
        (folder / "trtla" / library.name).symlink_to(library.resolve())
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _own_log_level() -> Iterator[None]:
    """What --quiet sets in this process is of one test alone."""
    logger = logging.getLogger("trtla")
    logger.setLevel(logging.NOTSET)  # a fixture of more than this test may have been quiet
    yield
    logger.setLevel(logging.NOTSET)
