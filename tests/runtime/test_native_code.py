"""Where no library can be compiled one note says why and what it costs, and all goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import trtla
from tests.support.command import needs
from tests.support.command import trtla as command
from tests.support.compiled import needs_compiler
from trtla.runtime.models.cpu import native_code
from trtla.runtime.models.cpu.levels import LEVELS, chosen_level, levels_of
from trtla.runtime.models.cpu.library import library
from trtla.runtime.models.cpu.native_code import (
    FORWARD,
    TREES,
    NativeCode,
    NotCompiled,
    is_whole,
    write_sealed,
)

NO_COMPILER = {"CXX": "no-such-compiler"}
COST = (
    "note: no C++ compiler was found (no-such-compiler): decoding is at least 3 times slower; "
    "install g++, or trtla from a wheel for this platform"
)


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run trtla as a process of its own, which says everything for the first time."""
    return subprocess.run(
        [sys.executable, "-m", "trtla", *map(str, args)],
        env={**os.environ, **NO_COMPILER},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.deep
def test_build_and_run_without_a_compiler_say_once_what_that_costs(tmp_path, tiny_llama):
    built = run("build", "--checkpoint-dir", tiny_llama, "--output-dir", tmp_path / "engine")
    assert built.returncode == 0
    assert built.stderr.count("slower") == 1
    assert COST in built.stderr.splitlines()
    ran = run("run", "-m", tmp_path / "engine", "-p", "def f(", "-n", "9")
    assert ran.returncode == 0
    assert ran.stderr.count("slower") == 1
    assert COST in ran.stderr.splitlines()
    assert "slower" not in run("run", "-q", "-m", tmp_path / "engine", "-p", "f", "-n", "1").stderr


@needs("doctor")
def test_doctor_tells_who_runs_forward_and_candidate_trees():
    ran = command("doctor", env=NO_COMPILER)
    rows = [line.split("|")[1:3] for line in ran.out.splitlines() if line.startswith("|")]
    shown = {name.strip(): value.strip() for name, value in rows}
    missing = "no C++ compiler was found (no-such-compiler)"
    assert shown["cpu_forward"] == f"PyTorch's operations: {missing}"
    assert shown["candidate_trees"] == f"prompt lookup: {missing}"


@pytest.mark.parametrize("missing", ["own", "included"])
def test_sources_that_are_not_there_are_no_error(tmp_path, missing):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.cpp").write_text("")
    folders = {"own": "there", "included": "there", missing: "gone"}
    own, included = (tmp_path / folders[name] for name in ("own", "included"))
    code = NativeCode("a", "nothing", own, [included])
    with pytest.raises(NotCompiled, match="gone cannot be read: No such file"):
        code.load()
    assert code.state() == f"nothing: {tmp_path / 'gone'} cannot be read: No such file or directory"


def test_a_compiler_that_fails_or_is_missing_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, words in (("false", "failed"), ("no-such-compiler", "no C++ compiler")):
        monkeypatch.setenv("CXX", name)
        with pytest.raises(NotCompiled, match=words.replace("+", r"\+")):
            FORWARD.compiled()
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_level_that_this_processor_does_not_run_is_refused(monkeypatch):
    monkeypatch.setenv("TRTLA_MARCH", "x86-64-v9")
    with pytest.raises(NotCompiled, match="x86-64-v9: this processor runs native, "):
        FORWARD.compiled()


def test_libraries_differ_by_level_sources_flags_and_named_compiler(monkeypatch, tmp_path):
    (tmp_path / "a.cpp").write_text("int a;")
    code = NativeCode("a", "nothing", tmp_path)
    names = {code.file_name(level) for level in LEVELS["x86_64"]}
    assert len(names) == len(LEVELS["x86_64"])
    level = LEVELS["x86_64"][0]
    before = code.file_name(level)
    assert NativeCode("a", "nothing", tmp_path, flags=["-g"]).file_name(level) != before
    (tmp_path / "a.cpp").write_text("int b;")
    assert code.file_name(level) != before
    monkeypatch.setenv("CXX", "/usr/bin/c++")
    assert FORWARD.state().startswith(("c++ compiles it", "compiled here"))


V3 = "fma avx2 bmi1 bmi2 f16c abm movbe cx16 popcnt ssse3 sse4_1 sse4_2"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("machine", "features", "level"),
    [
        ("x86_64", "sse2", "native"),
        ("x86_64", "cx16 popcnt ssse3 sse4_1 sse4_2 avx", "x86-64-v2"),
        ("x86_64", V3, "x86-64-v3"),
        ("x86_64", f"{V3} avx_vnni", "x86-64-v3-vnni"),
        ("x86_64", f"{V4} avx512_vnni avx_vnni", "x86-64-v4-vnni"),
        ("x86_64", V4, "x86-64-v4"),
        ("x86_64", f"{V4} avx512_vnni avx512_bf16", "x86-64-v4-bf16"),
        ("x86_64", f"{V4} avx512_vnni avx512_bf16 amx_tile amx_int8", "x86-64-v4-bf16"),
        ("x86_64", f"{V4} avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16", "x86-64-v4-amx"),
        ("aarch64", "fp asimd", "armv8-a"),
        ("aarch64", "fp asimd asimddp", "armv8.2-a-dotprod"),
        ("riscv64", "", "native"),
    ],
)
def test_the_fastest_level_that_a_processor_runs_is_taken(machine, features, level):
    assert levels_of(machine, frozenset(features.split()))[-1].name == level


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """A folder of prebuilt libraries, where there is nothing else and no compiler."""
    monkeypatch.setattr(native_code, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    (tmp_path / "prebuilt").mkdir()
    return tmp_path / "prebuilt"


@pytest.fixture
def library_file():
    """What this machine has compiled."""
    return FORWARD.compiled()


@needs_compiler
def test_a_prebuilt_library_needs_no_compiler(library_file, wheel):
    (wheel / library_file.name).write_bytes(library_file.read_bytes())
    assert FORWARD.load()._name == str(wheel / library_file.name)
    assert FORWARD.state() == f"prebuilt for {chosen_level().name}"


@needs_compiler
def test_a_prebuilt_library_that_cannot_be_loaded_or_is_of_other_sources_is_left(
    library_file, wheel, monkeypatch
):
    other = f"{library_file.stem[:-16]}0123456789abcdef.so"
    (wheel / other).write_bytes(library_file.read_bytes())
    with pytest.raises(NotCompiled, match="no C\\+\\+ compiler was found"):
        FORWARD.load()
    whole = bytearray(library_file.read_bytes())
    whole[18] ^= 0xFF  # the machine that it is for
    write_sealed(wheel / library_file.name, bytes(whole))
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("XDG_CACHE_HOME", str(library_file.parents[1]))
    assert FORWARD.load()._name == str(library_file)


def prebuilt_in_a_package(folder: Path) -> tuple[dict[str, str], Path]:
    """A copy of the package that has prebuilt libraries, and no compiler."""
    package = folder / "trtla"
    unfinished = shutil.ignore_patterns("*.pyc.*")  # what other processes are just writing
    shutil.copytree(Path(trtla.__file__).parent, package, ignore=unfinished)
    return {**NO_COMPILER, "PYTHONPATH": str(folder)}, package / "runtime/models/cpu/prebuilt"


def fake_compiler(folder: Path, link: str) -> Path:
    """A program that compiles nothing, and makes `$made` by a script where it is to link."""
    compiler = folder / "c++"
    compiler.write_text(
        '#!/bin/sh\nfor last; do case "$before" in -o) made="$last" ;; esac; before="$last"; done\n'
        f'case "$*" in *" -c "*) touch "$made"; exit ;; esac\n{link}\n'
    )
    compiler.chmod(0o755)
    return compiler


def compiled_in_a_cache(folder: Path) -> tuple[dict[str, str], Path]:
    """The user's cache, and a compiler that takes what was compiled before."""
    kept = FORWARD.compiled().parent
    compiler = fake_compiler(folder, f"""cat '{kept}'/"${{made##*/}}" >"$made\"""")
    return {"CXX": str(compiler)}, folder / "trtla" / str(compiler).replace("/", "_")


@pytest.mark.deep
@needs_compiler
@pytest.mark.parametrize("size", [None, 4096, 0], ids=["half", "4096-bytes", "empty"])
@pytest.mark.parametrize("where", [prebuilt_in_a_package, compiled_in_a_cache])
def test_a_library_that_was_cut_off_is_not_loaded(tmp_path, tiny_llama, where, size):
    """A process that reads a page that a file lacks is killed by SIGBUS."""
    environment, libraries = where(tmp_path)
    libraries.mkdir(parents=True)
    for code in (FORWARD, TREES):
        whole = code.compiled().read_bytes()
        (libraries / code.compiled().name).write_bytes(
            whole[: len(whole) // 2 if size is None else size]
        )
    ran = subprocess.run(
        [sys.executable, "-m", "trtla", "run", "-m", tiny_llama, "-p", "def f(", "-n", "4"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    answer = command("run", "-m", tiny_llama, "-p", "def f(", "-n", "4").out.partition("\n|")[0]
    assert ran.stdout.partition("\n|")[0] == answer
    if where is compiled_in_a_cache:
        assert "compiling" in ran.stderr
        assert "slower" not in ran.stderr
        for code in (FORWARD, TREES):
            made = (libraries / code.compiled().name).read_bytes()
            assert made.startswith(code.compiled().read_bytes())  # which the compiler has copied


@needs_compiler
def test_the_cache_keeps_a_few_libraries_of_other_releases(monkeypatch, tmp_path):
    environment, cache = compiled_in_a_cache(tmp_path)
    name = TREES.compiled().name
    kind = name.rpartition("-")[0]
    cache.mkdir(parents=True)
    for age in range(12):
        for other in (kind, f"{kind}2", "forward-x86-64-v3"):
            (cache / f"{other}-{age:016x}.so").write_text("")
            os.utime(cache / f"{other}-{age:016x}.so", (1e9 - age, 1e9 - age))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", environment["CXX"])
    assert TREES.compiled() == cache / name
    kept = {path.name for path in cache.glob(f"{kind}-*.so")}
    assert kept == {name, *(f"{kind}-{age:016x}.so" for age in range(7))}
    assert len(list(cache.glob("*.so"))) == 8 + 2 * 12


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(NotCompiled, match="cannot be written"):
        FORWARD.compiled()


def zeroed(whole: bytes) -> bytes:
    """As a power loss leaves a file whose pages were not yet written."""
    return whole[:4096] + bytes(len(whole) // 2) + whole[4096 + len(whole) // 2 :]


def changed(whole: bytes) -> bytes:
    return whole[:-200] + bytes([whole[-200] ^ 1]) + whole[-199:]


@needs_compiler
@pytest.mark.deep
@pytest.mark.parametrize("damage", [zeroed, changed])
def test_a_library_that_is_not_as_it_was_written_is_made_again(monkeypatch, tmp_path, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    environment, libraries = compiled_in_a_cache(tmp_path)
    whole = TREES.compiled().read_bytes()
    libraries.mkdir(parents=True)
    (libraries / TREES.compiled().name).write_bytes(damage(whole))
    monkeypatch.setenv("CXX", environment["CXX"])
    assert not TREES.is_there()
    assert is_whole(TREES.compiled())
    assert TREES.compiled().read_bytes().startswith(whole)


@needs_compiler
def test_a_library_is_on_the_disk_before_it_has_its_name(monkeypatch, tmp_path):
    environment, libraries = compiled_in_a_cache(tmp_path)
    name, done = TREES.compiled().name, list[str]()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", environment["CXX"])

    def flush(descriptor):
        done.append(f"{os.readlink(f'/proc/self/fd/{descriptor}').rpartition('/')[2]} is flushed")

    def rename(path, target):
        done.append(f"{path.name} is renamed")
        return os.replace(path, target)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(Path, "replace", rename)
    assert TREES.compiled().parent == libraries
    assert done == [f"{name} is flushed", f"{name} is renamed"]


def test_a_full_disk_is_not_the_compilers_fault(monkeypatch, tmp_path):
    """Its temporary files are in the cache too, not on a disk that the user does not know of."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler = tmp_path / "c++"
    says = 'echo "as: messages:\n$TMPDIR/x.s: Fatal error: x.o: No space left on device" >&2'
    compiler.write_text(f'#!/bin/sh\necho "$TMPDIR" >>"{tmp_path}/folders"\n{says}\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(NotCompiled) as refused:
        TREES.compiled()
    assert str(refused.value) == f"{tmp_path}/trtla cannot be written: No space left on device"
    assert refused.value.hint.startswith("free some space, or set XDG_CACHE_HOME")
    folders = (tmp_path / "folders").read_text().split()
    assert all(folder.startswith(f"{tmp_path}/trtla/") for folder in folders)
    assert not any(Path(folder).exists() for folder in folders)


SLOW = """
head -c 5000 '{library}' >"$made"
until [ -e '{sign}' ]; do sleep 0.01; done
cat '{library}' >"$made"
"""


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++")
@needs("run")
def test_clang_compiles_it_too_and_drafts_change_no_text(tiny_llama):
    asked = ("-m", tiny_llama, "-p", "def f(a, b):", "-n", "40", "--check-lossless")
    ran = command("run", *asked, env={"CXX": "clang++"})
    assert ran.code == 0, ran
    assert "equal to plain decoding" in ran.out
    assert "slower" not in ran.err
    assert ", compiled" in ran.err


@needs_compiler
def test_processes_that_compile_at_once_or_are_killed_leave_a_whole_library(tmp_path):
    """The compiler writes half a library, waits for a sign, and then writes the other half."""
    sign, cache = tmp_path / "go-on", tmp_path / "cache" / "trtla"
    compiler = fake_compiler(tmp_path, SLOW.format(library=FORWARD.compiled(), sign=sign))
    asked = "from trtla.runtime.models.cpu.library import library; print(library().lanes)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache.parent), "CXX": str(compiler)}

    def start():
        command = [sys.executable, "-c", asked]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    killed = start()
    while not list(cache.rglob(".compile.*/*.so")):
        assert killed.poll() is None
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert list(cache.glob("*/*.so")) == []
    both = [start(), start()]
    while len(list(cache.rglob(".compile.*/*.so"))) < 3:  # the killed one's and theirs
        assert both[0].poll() is both[1].poll() is None
        time.sleep(0.01)
    sign.touch()
    assert [process.communicate()[0].strip() for process in both] == [str(library().lanes)] * 2
    assert len(list(cache.glob("*/*.so"))) == 2  # and the candidate trees
