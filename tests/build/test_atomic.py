"""Output folders appear whole or not at all: kills, Ctrl-C, full disks, what --force replaces."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.examples import share
from tests.support.models import Variant, make_model, save_model
from trtla.build.convert import convert
from trtla.errors import TrtlaError, UsageError
from trtla.formats.atomic import atomic_directory, check_target, restore
from trtla.formats.model_folder import ModelFolder

KILL = """
import os, random, signal, sys, time
from pathlib import Path
from trtla.build.convert import convert
from trtla.formats import atomic
from trtla.formats.checkpoint import Checkpoint
from trtla.formats.model_folder import ModelFolder
def kill_again_and_again(hf, target, moments, times):
    convert(hf, target, tp_size=2)
    for _ in range(times):
        child = os.fork()
        if not child:
            while True:
                convert(hf, target, tp_size=2, force=True)
        time.sleep(moments.uniform(0, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert ModelFolder(target).kind == "checkpoint"
        assert len(list(Checkpoint.open(target).full_tensors())) == 17
    for left in target.parent.iterdir():
        os.utime(left, (1, 1))
    convert(hf, target, tp_size=2, force=True)
    print(*(path.name for path in target.parent.iterdir()))
hf, folder, moments, times = sys.argv[1], Path(sys.argv[2]), random.Random(0), int(sys.argv[3])
kill_again_and_again(hf, folder / "with" / "ckpt", moments, times)
atomic._exchange = lambda one, other: False
kill_again_and_again(hf, folder / "without" / "ckpt", moments, times)
"""


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    variant = Variant("gqa")
    return save_model(make_model(variant), variant, tmp_path_factory.mktemp("atomic") / "hf")


def test_a_process_killed_at_any_moment_leaves_a_whole_checkpoint(hf: Path, tmp_path: Path) -> None:
    """Children convert over and over; every kill falls into some stage of it.

    Both where the system exchanges two folders in one step, and where it cannot.
    """
    command = [sys.executable, "-c", KILL, str(hf), str(tmp_path), str(share(25))]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["ckpt", "ckpt"]


def test_a_folder_that_was_put_aside_is_found_by_readers_and_replaced_by_the_next_run(
    hf: Path, tmp_path: Path
) -> None:
    """By what a kill between two renames leaves."""
    target = tmp_path / "a [1] checkpoint"
    old = convert(hf, target).rename(tmp_path / f".{target.name}.old-1234")
    convert(hf, tmp_path / "new", tp_size=2).rename(tmp_path / f".{target.name}.tmp-1234")
    before = (old / "rank0.safetensors").read_bytes()
    assert ModelFolder(target).kind == "checkpoint"
    assert (target / "rank0.safetensors").read_bytes() == before
    assert not (target / "rank1.safetensors").exists()
    for left in tmp_path.iterdir():
        os.utime(left, (1, 1))
    with pytest.raises(UsageError, match="is not empty"):
        convert(hf, target)
    convert(hf, target, tp_size=2, force=True)
    assert (target / "rank1.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_a_folder_that_is_aside_for_a_moment_is_left_to_its_process(tmp_path: Path) -> None:
    aside = tmp_path / ".ckpt.old-1234"
    aside.mkdir()
    descriptor = os.open(aside, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        restore(tmp_path / "ckpt")
    finally:
        os.close(descriptor)
    assert [path.name for path in tmp_path.iterdir()] == [aside.name]


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


def test_force_never_replaces_what_trtla_did_not_make(hf: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "documents").mkdir(parents=True)
    (home / "config.json").write_text('{"mapping": {}}')
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "note.txt").write_text("mine")
    other_model = save_model(make_model(Variant("gqa")), Variant("gqa"), tmp_path / "model")
    for folder in (home, plain, other_model):
        before = sorted(folder.iterdir())
        with pytest.raises(UsageError, match="no checkpoint or engine"):
            convert(hf, folder, force=True)
        assert sorted(folder.iterdir()) == before


def test_the_source_and_its_parents_are_never_a_target(hf: Path, tmp_path: Path) -> None:
    convert(hf, tmp_path / "ckpt")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "ckpt")
    for target in (hf, hf.parent, hf / ".."):
        with pytest.raises(UsageError, match="holds the input"):
            convert(hf, target, force=True)
    with pytest.raises(UsageError, match="holds the input"):
        check_target(link, force=True, sources=(tmp_path / "ckpt",))


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
