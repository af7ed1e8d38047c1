"""Packed weights in files: written once, never trusted when they changed, never needed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.compiled import needs_compiler
from tests.support.gguf_models import write_gguf
from tests.support.models import make_model
from tests.support.ranks import WIDE
from trtla import LLM, LookaheadConfig, SamplingParams
from trtla.build.engine import build_engine
from trtla.formats.engine_limits import BuildSettings
from trtla.llm.open import open_model
from trtla.runtime.models.cpu import kept
from trtla.runtime.models.cpu.kept import mapped, panels_name
from trtla.runtime.models.cpu.packing import ModelPanels, pack_model

pytestmark = needs_compiler
LONGER = replace(WIDE, keys={**WIDE.keys, "max_position_embeddings": 96})
PROMPT, SHORT = [[1, 2, 3, 4, 5]], SamplingParams(max_output_len=24)


@pytest.fixture
def model(own_cache, tmp_path, monkeypatch):
    """A GGUF file, and no panels yet."""
    monkeypatch.setattr(kept, "_SPARE", 0.0)  # however full this machine's disk is
    return write_gguf(make_model(LONGER), tmp_path / "model.gguf", "Q4_1")


def files():
    return sorted(Path(os.environ["XDG_CACHE_HOME"], "trtla", "panels").glob("*"))


def text_of(model, **options):
    with LLM(model, lookahead="auto", **options) as llm:
        llm.end_ids = frozenset()
        return llm.generate(PROMPT, SHORT)[0].output_ids


def forbid_packing(monkeypatch):
    monkeypatch.setattr(
        "trtla.runtime.models.load.pack_model", lambda *_: pytest.fail("weights were packed")
    )


def test_weights_are_packed_once_and_then_mapped(model, monkeypatch):
    wanted = text_of(model, packed_cache_gb=0.0)
    assert files() == []
    assert text_of(model) == wanted
    (file,) = files()
    assert file.suffix == ".panels"
    forbid_packing(monkeypatch)
    assert text_of(model) == wanted


def test_what_is_mapped_is_what_is_packed(model, tmp_path):
    engine = open_model(model, None)
    config = engine.config.pretrained_config
    packed = ModelPanels.of(pack_model(config, engine.weights(), "float32"))
    kept.write_panels(tmp_path / "x", pack_model(config, engine.weights(), "float32"), 10**9)
    found = mapped(tmp_path / "x")
    assert found is not None
    assert list(found.matrices) == list(packed.matrices)
    for name, one in packed.matrices.items():
        other = found.matrices[name]
        assert np.array_equal(other.weight, one.weight)
        assert (other.bias is None) == (one.bias is None)
        assert (other.outputs, other.inputs, other.type, other.stored) == (
            one.outputs, one.inputs, one.type, one.stored,
        )  # fmt: skip
        with pytest.raises(ValueError, match="read-only"):
            other.weight[0] = 1
    for name, vector in packed.vectors.items():
        assert np.array_equal(found.vectors[name], vector)


def flipped(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 255
    file.write_bytes(data)


DAMAGE = {
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "empty": lambda file: file.write_bytes(b""),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    "one byte": flipped,
    "other content": lambda file: file.write_bytes(b"x" * 5000),
    "no index, and the time of a whole file": lambda file: (
        file.write_bytes(b"x" * 5000),
        os.utime(file, ns=(0, kept._WRITTEN_NS)),
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_changed_is_made_anew(model, damage):
    wanted = text_of(model)
    (file,) = files()
    whole = file.read_bytes()
    DAMAGE[damage](file)
    assert mapped(file) is None
    assert text_of(model) == wanted
    assert file.read_bytes() == whole
    assert mapped(file) is not None


def test_another_file_arithmetic_or_layout_has_another_name(model, tmp_path, monkeypatch):
    engine = open_model(model, None)
    names = {panels_name(engine, "float32"), panels_name(engine, "bfloat16")}
    os.utime(model, ns=(1, 1))
    names.add(panels_name(open_model(model, None), "float32"))
    monkeypatch.setattr(kept, "packing_of", lambda arithmetic: "another layout")
    names.add(panels_name(engine, "float32"))
    assert len(names) == 4


def test_a_new_model_in_the_place_of_another_is_never_read_from_its_file(model):
    first = text_of(model)
    write_gguf(make_model(LONGER, 5), model, "Q4_1")
    second = text_of(model)
    assert second == text_of(model, packed_cache_gb=0.0) != first


@pytest.fixture
def clock(monkeypatch):
    """The time of day, which is a minute later whenever it is asked for."""
    minutes = itertools.count(time.time_ns() + 10**13, 60 * 10**9)
    monkeypatch.setattr(kept, "time", SimpleNamespace(time_ns=minutes.__next__))
    return minutes


@pytest.mark.usefixtures("clock")
def test_the_files_read_longest_ago_go_first(model, tmp_path):
    models = [
        write_gguf(make_model(LONGER, seed), tmp_path / f"{seed}", "Q4_1") for seed in range(4)
    ]
    names = []
    for one in models[:3]:
        before = set(files())
        text_of(one)
        names += set(files()) - before
    text_of(models[0])  # the second is now the oldest
    room = 3.2 * max(name.stat().st_size for name in names) / 1e9
    text_of(models[3], packed_cache_gb=room)
    assert [name.exists() for name in names] == [True, False, True]
    assert len(files()) == 3


def test_no_room_or_no_permission_leaves_them_in_memory(model, monkeypatch, caplog):
    caplog.set_level("INFO")
    wanted = text_of(model, packed_cache_gb=0.0)
    assert text_of(model, packed_cache_gb=1e-5) == wanted
    assert "packed weights are not kept: there is room for 0.0 GB" in caplog.text
    assert files() == []
    monkeypatch.setattr(kept, "write_whole", raises)
    assert text_of(model) == wanted
    assert "packed weights are not kept: No space left on device" in caplog.text


def raises(*_, **__):
    raise OSError(28, "No space left on device")


def test_a_killed_writer_leaves_nothing_that_is_read(model, tmp_path):
    program = (
        "import os, signal\nfrom trtla.runtime.models.cpu import kept\nfrom trtla import LLM\n"
        "def killed_at(place, panels, most, own=kept._pieces):\n"
        "    for number, piece in enumerate(own(panels, most)):\n"
        "        if number == place:\n            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        yield piece\n"
        "for place in (0, 4, 8):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        kept._pieces = lambda *given: killed_at(place, *given)\n"
        f"        LLM({str(model)!r})\n"
        "    print(os.WTERMSIG(os.waitpid(child, 0)[1]))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.split() == ["9"] * 3, ran.stderr
    assert not any(mapped(file) for file in files())
    assert text_of(model) == text_of(model, packed_cache_gb=0.0)


def test_two_processes_that_pack_at_the_same_time_leave_one_whole_file(model):
    program = f"from trtla import LLM\nprint(LLM({str(model)!r}).generate({PROMPT})[0].output_ids)"
    children = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(2)
    ]
    texts = {child.communicate()[0] for child in children}
    assert len(texts) == 1
    assert [mapped(file) is not None for file in files()] == [True]


def test_reading_counts_as_use(model, clock):
    text_of(model)
    (file,) = files()
    os.utime(file, ns=(1, kept._WRITTEN_NS))
    before = next(clock)
    text_of(model)
    assert file.stat().st_atime_ns > before
    assert file.stat().st_mtime_ns == kept._WRITTEN_NS


def test_an_engine_brings_its_own(model, tmp_path, monkeypatch):
    """Where this machine builds for itself; a copy whose times differ is packed as any other."""
    build_engine(model, tmp_path / "engine", BuildSettings(LookaheadConfig(3, 3, 3)))
    (own,) = (tmp_path / "engine").glob("*.panels")
    wanted = text_of(tmp_path / "engine", packed_cache_gb=0.0)
    with monkeypatch.context() as patch:
        forbid_packing(patch)
        assert text_of(tmp_path / "engine") == wanted
    assert files() == []
    os.utime(own)
    assert text_of(tmp_path / "engine") == wanted
    assert len(files()) == 1
