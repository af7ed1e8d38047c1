"""A model that memory has no room for is refused before its weights are read, with both figures."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gguf_models import write_gguf
from tests.support.heads import write_head
from tests.support.models import Variant, make_model
from trtla import LLM, SamplingParams, TrtlaError, machine
from trtla.formats.heads.head import EagleConfig, Head, MedusaConfig
from trtla.formats.heads.reading import read_head
from trtla.formats.model import Model
from trtla.runtime import threads
from trtla.runtime.models import kv_cache
from trtla.runtime.models.cpu.packing import Packer, pack_model
from trtla.runtime.models.heads.panels import WeightTypes, pack_head, pack_medusa, panel_bytes
from trtla.runtime.models.load import not_compiled

MIB = 2**20
WIDE = Variant("", {"hidden_size": 128, "vocab_size": 4000, "max_position_embeddings": 8192})
"""Weights of 4.6 MiB in float32, 2 KiB of keys and values a token."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "wide.gguf"
    no_texts = {"keys": {"vocab_size": 4000}, "tokenizer": {"model": "no_vocab"}}
    return write_gguf(make_model(WIDE), path, **no_texts)


@pytest.fixture
def compiled(model: Path) -> None:
    if reason := not_compiled(Model.at(model).open(None).config.pretrained_config, "float32"):
        pytest.skip(reason)


@pytest.mark.usefixtures("compiled")
def test_too_little_memory_is_said_before_weights_are_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    inner = os.preadv
    monkeypatch.setattr(kv_cache, "available_memory", lambda **_: 104 * MIB)
    monkeypatch.setattr(os, "preadv", lambda *args: read.append(1) or inner(*args))
    with pytest.raises(TrtlaError) as raised:
        LLM(model, dtype="float32", threads=1)
    found = re.findall(r"\d+\.\d\d", raised.value.message)
    needed, free, weights, cache, rest = map(float, found)
    assert raised.value.message.startswith(f"{model} needs {needed:.2f} GiB")
    assert free == 0.10
    assert needed == pytest.approx(weights + cache + rest, abs=0.02)
    assert "Q4_0" in str(raised.value.hint)
    assert "max_seq_len" in str(raised.value)
    assert not read
    monkeypatch.setattr(kv_cache, "available_memory", lambda **_: 150 * MIB)
    LLM(model, dtype="float32", threads=1).close()


@pytest.mark.usefixtures("compiled")
def test_keys_and_values_of_the_texts_that_are_asked_for_count(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "available_memory", lambda **_: 110 * MIB)
    LLM(model, dtype="float32", threads=1, max_seq_len=100).close()
    with pytest.raises(TrtlaError, match=r"it takes 0\.00 for weights, 0\.\d\d for keys"):
        LLM(model, dtype="float32", threads=1, max_seq_len=8192)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0", "Q4_K"])
def test_the_size_that_is_asked_for_is_that_of_the_panels(kind: str, tmp_path: Path) -> None:
    variant = Variant("", {"hidden_size": 256, "intermediate_size": 512})
    no_texts = {"keys": {"vocab_size": 101}, "tokenizer": {"model": "no_vocab"}}
    file = write_gguf(make_model(variant), tmp_path / "m.gguf", kind, **no_texts)
    engine = Model.at(file).open(None)
    packer = Packer("float32")
    with engine.stored_weights() as stored:
        weights = list(stored)
        asked = sum(packer.nbytes(weight) for _, weight in weights if len(weight.shape) == 2)
        panels = pack_model(engine.config.pretrained_config, weights, "float32")
    made = sum(matrix.weight.nbytes for matrix in panels.matrices.values())
    assert asked == pytest.approx(made, rel=0.02)


@pytest.mark.parametrize("style", ["specforge", "medusa"])
def test_a_head_that_memory_has_no_room_for_is_refused_before_it_is_read(
    style: str, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := not_compiled(Model.at(tiny_llama).config, "float32"):
        pytest.skip(reason)
    model = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    large = {"intermediate_size": 16_000} if style == "specforge" else {"num_heads": 20}
    head, sampling = write_head(model / "head", style, **large), SamplingParams(max_tokens=4)
    monkeypatch.setattr(kv_cache, "available_memory", lambda **_: 116 * MIB)
    with monkeypatch.context() as patch:
        patch.setattr(Head, "tensor", lambda *_: pytest.fail("it is read"))
        with pytest.raises(TrtlaError, match=rf"{head} needs 0\.1\d GiB of memory") as raised:
            LLM(model, drafter=f"head:{head}", threads=1)
    assert "go without the head" in str(raised.value.hint)
    with LLM(model, threads=1, max_seq_len=64) as llm:  # found, and left out
        assert llm.limits.drafter.head is None
        assert llm.generate("import os", sampling)[0].text
    monkeypatch.setattr(kv_cache, "available_memory", lambda **_: 200 * MIB)
    LLM(model, drafter=f"head:{head}", threads=1).close()


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "Q4_0", "Q4_K"])
def test_the_size_of_a_head_is_that_of_its_panels(kind: str, tmp_path: Path) -> None:
    eagle = read_head(write_head(tmp_path / "eagle"))
    medusa = read_head(write_head(tmp_path / "medusa", "medusa"))
    assert isinstance(eagle.config, EagleConfig)
    assert isinstance(medusa.config, MedusaConfig)
    types = WeightTypes(kind, "Q8_0" if kind == "Q4_0" else kind)
    for arithmetic in ("float32", "bfloat16"):
        packed = (
            (eagle, pack_head(eagle, eagle.config, types, arithmetic)),
            (medusa, pack_medusa(medusa, medusa.config, types, arithmetic)),
        )
        for head, panels in packed:
            made = sum(matrix.weight.nbytes for matrix in panels.matrices.values())
            assert panel_bytes(head, types, arithmetic) == pytest.approx(made, rel=0.02)


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_limits_memory(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, used, kept, name = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_", "memory"),
        2: ("memory.max", "memory.current", "", ""),
    }[version]
    own = tmp_path / name / "job" / "step"
    own.mkdir(parents=True)
    lines = machine._lines
    group = {1: "4:memory:/job/step", 2: "0::/job/step"}[version]
    monkeypatch.setattr(
        machine, "_lines", lambda p: [group] if str(p) == "/proc/self/cgroup" else lines(p)
    )
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    before = machine.available_memory()
    assert before is not None
    (own / limit).write_text("max\n")
    (own / used).write_text("5\n")
    assert machine.available_memory() > 70 * MIB
    (own.parent / limit).write_text(f"{90 * MIB}\n")
    (own.parent / used).write_text(f"{50 * MIB}\n")
    stat = f"anon 7\n{kept}active_file {10 * MIB}\n{kept}inactive_file {20 * MIB}\n"
    (own.parent / "memory.stat").write_text(stat)
    assert machine.available_memory() == 70 * MIB


@pytest.mark.parametrize(
    ("own", "parent", "cores"),
    [
        ((-1, 100000), (-1, 100000), 8),
        ((250000, 100000), (-1, 100000), 3),
        ((240000, 100000), (900000, 100000), 2),
        ((400000, 100000), (50000, 50000), 1),
        ((20000, 100000), (-1, 100000), 1),
        ((0, 0), ("odd", 100000), 8),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_limits_cores(
    version: int,
    own: tuple[object, object],
    parent: tuple[object, object],
    cores: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The smallest quota on the path of parents, to the nearest whole core."""
    root = tmp_path / "cpu" if version == 1 else tmp_path
    for folder, (quota, period) in {"job": parent, "job/step": own}.items():
        (root / folder).mkdir(parents=True)
        if version == 1:
            (root / folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
            (root / folder / "cpu.cfs_period_us").write_text(f"{period}\n")
        else:
            limit = "max" if quota == -1 else quota
            (root / folder / "cpu.max").write_text(f"{limit} {period}\n")
    lines, group = machine._lines, {1: "3:cpu,cpuacct:/job/step", 2: "0::/job/step"}[version]
    monkeypatch.setattr(
        machine, "_lines", lambda p: [group] if str(p) == "/proc/self/cgroup" else lines(p)
    )
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert machine.usable_cores() == machine.cpu().cores == cores
    assert threads._physical_cores() <= cores


@pytest.mark.parametrize(
    ("limit", "used", "room"),
    [("", "", 40), ("0", "0", 40), ("max", "5", 60), (15 * MIB, 5 * MIB, 50), (99 * MIB, "x", 40)],
)
def test_what_a_control_group_holds_can_be_swapped_out(
    limit: object, used: object, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as its own limit of swap and the machine's swap allow."""
    files = {"max": 90 * MIB, "current": 50 * MIB, "swap.max": limit, "swap.current": used}
    for name, text in files.items():
        (tmp_path / f"memory.{name}").write_text(f"{text}\n" if text != "" else "")
    lines, known = machine._lines, {"MemTotal": 900, "MemAvailable": 600, "SwapFree": 20}
    monkeypatch.setattr(
        machine, "_lines", lambda p: ["0::/"] if str(p) == "/proc/self/cgroup" else lines(p)
    )
    monkeypatch.setattr(machine, "_memory", lambda key: known[key] * MIB)
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    assert machine.available_memory() == 40 * MIB
    assert machine.available_memory(swap=True) == room * MIB


@pytest.mark.parametrize("group", ["", "odd", "0::/", "0::/../.."])
@pytest.mark.parametrize(("used", "stat"), [("max", ""), ("5", "odd\n\na b c\nactive_file x\n")])
def test_odd_control_groups_limit_nothing(
    group: str, used: str, stat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = machine._lines
    for name, text in (("max", "1000"), ("current", used), ("stat", stat)):
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(
        machine, "_lines", lambda p: [group] if str(p) == "/proc/self/cgroup" else lines(p)
    )
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    assert (machine.available_memory() or 0) > MIB


@pytest.mark.parametrize(("swap", "room"), [(0, 60), (30, 90), (300, 100)])
def test_other_programs_can_be_swapped_out(
    swap: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much as the machine has, a model that is swapped out itself is too slow to be of use."""
    known = {"MemTotal": 100, "MemAvailable": 60, "SwapFree": swap}
    monkeypatch.setattr(machine, "_memory", lambda key: known[key] * MIB)
    assert machine.available_memory() == 60 * MIB
    assert machine.available_memory(swap=True) == room * MIB


def test_a_limit_of_addresses_limits_memory() -> None:
    code = "from trtla.machine import available_memory; print(available_memory())"
    most = 500 * MIB

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, preexec_fn=limit
    )
    assert 100 * MIB < int(done.stdout) < most
