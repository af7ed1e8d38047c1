"""Output folders appear whole or not at all: kills, Ctrl-C, full disks, what --force replaces."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.examples import share
from tests.support.models import Variant, make_model, save_model
from trtla.build.convert import convert
from trtla.errors import TrtlaError, UsageError
from trtla.formats.atomic import atomic_directory, check_target
from trtla.formats.filling import restore
from trtla.formats.model_folder import ModelFolder

KILL = """
import os, random, signal, sys, time
from pathlib import Path
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.model_folder import ModelFolder
hf, folder, moments, times = sys.argv[1], Path(sys.argv[2]), random.Random(0), int(sys.argv[3])
def check(kind):
    assert ModelFolder(folder).kind == kind
    assert ModelFolder(folder / "ckpt").kind == "checkpoint"
    assert len(list(Checkpoint.open(folder / "ckpt").full_tensors())) == 17
    assert (folder / "mine.txt").read_text() == "mine"
def child(work):
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    return pid
def killed_at_random(work, kind):
    for _ in range(times):
        pid = child(lambda: [work() for _ in iter(int, 1)])
        time.sleep(moments.uniform(0, 0.06))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        check(kind)
def killed_at_rename(work, number):
    rename, seen = Path.rename, [0]
    def counted(path, target):
        seen[0] += 1
        if seen[0] > number:
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(path, target)
    Path.rename = counted
    work()
def killed_at_every_rename(work, kind):
    for number in range(99):
        pid = child(lambda: killed_at_rename(work, number))
        if not os.waitpid(pid, 0)[1]:
            return number
        check(kind)
def swept(work):
    for left in folder.iterdir():
        os.utime(left, (1, 1))
    work()
    assert {path.name for path in folder.iterdir() if path.name[0] == "."} == set()
convert(hf, folder / "ckpt", tp_size=2)
(folder / "mine.txt").write_text("mine")
builds = lambda: build_engine(folder / "ckpt", folder, BuildSettings(), force=True)
converts = lambda: convert(hf, folder, tp_size=2, force=True)
for work, kind in ((builds, "engine"), (converts, "checkpoint")):
    work()
    killed_at_random(work, kind)
    assert killed_at_every_rename(work, kind) > 5
    swept(work)
"""


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    variant = Variant("gqa")
    return save_model(make_model(variant), variant, tmp_path_factory.mktemp("atomic") / "hf")


def test_a_process_killed_at_any_moment_leaves_whole_folders(hf: Path, tmp_path: Path) -> None:
    """Children build and convert over and over; every kill falls into some stage of it.

    The target holds the input, so its files are renamed one by one.
    """
    command = [sys.executable, "-c", KILL, str(hf), str(tmp_path), str(share(12))]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_a_move_that_still_runs_is_left_to_its_process(tmp_path: Path) -> None:
    ready = tmp_path / ".trtla-ready-1234"
    ready.mkdir()
    descriptor = os.open(ready, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        restore(tmp_path)
        assert ready.is_dir()
    finally:
        os.close(descriptor)
    restore(tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_is_being_filled_is_no_folder_of_others(hf: Path, tmp_path: Path) -> None:
    target = convert(hf, tmp_path / "ckpt")
    ready = target / ".trtla-ready-1234"
    ready.mkdir()
    (target / "config.json").rename(ready / "config.json")
    descriptor = os.open(ready, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(TrtlaError, match="another process is writing into it"):
            convert(hf, target, force=True)
        with pytest.raises(UsageError, match="are being replaced, or a killed process"):
            _ = ModelFolder(target).kind
    finally:
        os.close(descriptor)


def test_an_error_between_two_renames_undoes_them(
    hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = convert(hf, tmp_path / "ckpt")
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    rename = Path.rename

    def fail(path: Path, to: Path) -> Path:
        if to == target / "rank1.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(TrtlaError, match="the disk is full"):
        convert(hf, target, tp_size=2, force=True)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before


def test_ctrl_c_leaves_nothing_behind_but_the_old_folder(hf: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(hf, tmp_path / "new" / "ckpt", progress=interrupt)
    assert not any(tmp_path.iterdir())
    before = (convert(hf, tmp_path / "ckpt") / "rank0.safetensors").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        convert(hf, tmp_path / "ckpt", tp_size=2, force=True, progress=interrupt)
    assert (tmp_path / "ckpt" / "rank0.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]


def test_force_replaces_a_checkpoint_and_leaves_no_other_file(hf: Path, tmp_path: Path) -> None:
    convert(hf, tmp_path / "ckpt", tp_size=4)
    convert(hf, tmp_path / "ckpt", force=True)
    assert not (tmp_path / "ckpt" / "rank1.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(hf: Path, tmp_path: Path) -> None:
    """A limit on the size of files stops the writing in the middle, as a full disk does."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, old[1]))
    try:
        with pytest.raises(TrtlaError, match="the file would exceed") as caught:
            convert(hf, tmp_path / "ckpt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert str(tmp_path / "ckpt") in caught.value.message
    assert not any(tmp_path.iterdir())


def test_a_disk_without_room_is_refused_before_the_first_byte(
    hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("trtla.formats.checkpoint.shutil.disk_usage", lambda path: usage)
    with pytest.raises(TrtlaError, match="the disk is full") as caught:
        convert(hf, tmp_path / "ckpt")
    assert caught.value.hint
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "sentence"), [(errno.EACCES, "no permission"), (errno.EROFS, "read-only")]
)
def test_no_permission_is_one_sentence(
    number: int, sentence: str, hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def refuse(path: Path, **keys: bool) -> None:
        if path.name.startswith(".ckpt.tmp-"):
            raise OSError(number, os.strerror(number))
        mkdir(path, **keys)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(TrtlaError, match=sentence) as caught:
        convert(hf, tmp_path / "new" / "ckpt")
    assert caught.value.hint
    assert not any(tmp_path.iterdir())


def test_force_replaces_only_files_of_checkpoints_and_engines(hf: Path, tmp_path: Path) -> None:
    target = convert(hf, tmp_path / "ckpt")
    (target / "documents").mkdir()
    (target / "note.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty") as caught:
        convert(hf, target, tp_size=2)
    assert caught.value.hint is not None
    assert "--force" in caught.value.hint
    convert(hf, target, tp_size=2, force=True)
    assert (target / "note.txt").read_text() == "mine"
    assert (target / "documents").is_dir()
    assert (target / "rank1.safetensors").is_file()


def test_another_models_files_are_never_replaced(hf: Path, tmp_path: Path) -> None:
    other = save_model(make_model(Variant("gqa")), Variant("gqa"), tmp_path / "model")
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "rank0.engine").write_text("mine")
    for folder in (other, weights):
        before = {path: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(UsageError, match="belongs to no checkpoint or engine"):
            convert(hf, folder, force=True)
        assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_target_may_hold_the_input_but_not_be_it(hf: Path, tmp_path: Path) -> None:
    model = shutil.copytree(hf, tmp_path / "all" / "hf")
    before = {path: path.read_bytes() for path in model.iterdir()}
    convert(model, tmp_path / "all")
    convert(model, model / "ckpt")
    assert before.items() <= {p: p.read_bytes() for p in model.iterdir() if p.is_file()}.items()
    with pytest.raises(UsageError, match="is that of the input"):
        convert(model, model, force=True)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "all")
    with pytest.raises(UsageError, match="is that of the input"):
        check_target(link, force=True, sources=(tmp_path / "all",))


def test_a_file_as_target_is_refused(hf: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        convert(hf, tmp_path / "file")
    with pytest.raises(TrtlaError):
        convert(hf, tmp_path / "file" / "below")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(UsageError, match="is a file"):
        convert(hf, tmp_path / "circle")


def test_a_target_filled_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "ckpt"

    def fill() -> None:
        with atomic_directory(target) as folder:
            (folder / "new").write_text("new")
            target.mkdir()
            (target / "theirs").write_text("theirs")

    with pytest.raises(TrtlaError, match="filled it meanwhile"):
        fill()
    assert [path.name for path in target.iterdir()] == ["theirs"]
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]


def test_the_folders_mode_follows_the_umask(hf: Path, tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        convert(hf, tmp_path / "ckpt")
    finally:
        os.umask(old)
    assert (tmp_path / "ckpt").stat().st_mode & 0o777 == 0o755
    assert json.loads((tmp_path / "ckpt" / "config.json").read_text())["architecture"]


def test_leftovers_of_killed_runs_are_swept_and_live_ones_are_kept(tmp_path):
    target = tmp_path / "ckpt"
    dead, live, fresh = (tmp_path / f".ckpt.tmp-{name}" for name in ("dead", "live", "fresh"))
    for folder in (dead, live, fresh):
        folder.mkdir()
        (folder / "rank0.safetensors").write_bytes(b"half")
    for folder in (dead, live):
        os.utime(folder, (1, 1))
    descriptor = os.open(live, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with atomic_directory(target) as folder:
            (folder / "config.json").write_text("{}")
    finally:
        os.close(descriptor)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [live.name, fresh.name, target.name]
    )
