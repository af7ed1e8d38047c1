"""A weight file that another process cuts, writes to or replaces, or whose disk fails, while it is
read: one sentence, nothing loaded, and no signal. A model that is open needs its files no more.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.gguf_models import write_gguf
from tests.support.models import Variant, make_model, save_model
from trtla import LLM, SamplingParams, TrtlaError, UsageError
from trtla.build.convert import convert
from trtla.build.engine import build_engine
from trtla.formats.engine_limits import BuildSettings
from trtla.formats.gguf import header
from trtla.formats.gguf.folder import model_folder
from trtla.formats.gguf.header import read_header
from trtla.formats.model import Model

KINDS = {
    "gguf": "model.gguf",
    "folder": "folder/model.safetensors",
    "engine": "engine/rank0.safetensors",
}
"""Where the weights of each kind of model are."""
Fault = Callable[[Path, Path], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of one shape, in all kinds of files."""
    root = tmp_path_factory.mktemp("made")
    for seed in (0, 1):
        variant, place = Variant(""), root / str(seed)
        model = make_model(variant, seed=seed)
        save_model(model, variant, place / "folder")
        no_texts = {"keys": {"vocab_size": 101}, "tokenizer": {"model": "no_vocab"}}
        write_gguf(model, place / "model.gguf", **no_texts)
        convert(place / "folder", place / "checkpoint", dtype="float32")
        build_engine(place / "checkpoint", place / "engine", BuildSettings(), backend="torch")
    return root


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest, made: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A model, its weights, and the same file of other weights."""
    name = KINDS[request.param]
    for seed in "01":
        shutil.copytree(made / seed, tmp_path / seed)
    own = tmp_path / "0"
    model = own / name.partition("/")[0]
    return model, own / name, tmp_path / "1" / name


def cut(file: Path, _: Path) -> None:
    code = f"import os; os.truncate({str(file)!r}, os.path.getsize({str(file)!r}) // 3)"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


def grow(file: Path, _: Path) -> None:
    with file.open("ab") as open_file:
        open_file.write(bytes(64))


def rewrite(file: Path, other: Path) -> None:
    file.write_bytes(other.read_bytes())


def fail(*_: Path) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def while_reading(monkeypatch: pytest.MonkeyPatch, fault: Callable[[], None]) -> None:
    """Have it happen before the third piece of weights is read."""
    inner, calls = os.preadv, iter(range(10**9))

    def read(*args: object) -> int:
        if next(calls) == 2:
            fault()
        return inner(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "preadv", read)


@pytest.mark.parametrize("fault", [cut, grow, rewrite, fail])
def test_what_happens_to_a_file_while_it_is_read_is_said(
    fault: Fault, files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, weights, other = files
    while_reading(monkeypatch, lambda: fault(weights, other))
    said = (
        "cannot be read: Input/output error" if fault is fail else "has changed while it was read"
    )
    with pytest.raises(TrtlaError, match=f"^{weights} {said}") as raised:
        LLM(model, dtype="float32", threads=1)
    assert raised.value.message.count("\n") == 0
    assert raised.value.hint


def test_a_file_that_is_replaced_while_it_is_open_is_read_to_its_end(
    files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, weights, other = files
    wanted = text(LLM(model, dtype="float32", threads=1))
    while_reading(monkeypatch, lambda: other.replace(weights))
    assert text(LLM(model, dtype="float32", threads=1)) == wanted


def test_a_file_that_is_replaced_before_its_weights_are_read_is_named(
    files: tuple[Path, Path, Path],
) -> None:
    model, weights, other = files
    if model.name == "engine":
        pytest.skip("the header of an engine's weights is read with them")
    engine = Model.at(model).open(None)
    os.utime(other, ns=(0, 0))
    other.replace(weights)
    with pytest.raises(UsageError, match=f"^{weights} has changed while it was read"):
        list(engine.weights())


def test_an_open_model_needs_its_files_no_more(files: tuple[Path, Path, Path]) -> None:
    model, weights, _ = files
    wanted = text(LLM(model, dtype="float32", threads=1))
    llm = LLM(model, dtype="float32", threads=1)
    os.truncate(weights, 0)
    assert text(llm) == wanted


def text(llm: LLM) -> tuple[int, ...]:
    with llm:
        return tuple(llm.generate([[5, 6, 7]], SamplingParams(max_output_len=4))[0].output_ids)


READ_AND_CUT = """
import os, sys
from pathlib import Path
from trtla.formats.gguf import header
inner = header._Reader.read
def read(self):
    os.truncate(sys.argv[1], 10)  # as another process may, once the file is open
    return inner(self)
header._Reader.read = read
print(len(header.read_header(Path(sys.argv[1])).tensors))
"""


def test_a_header_that_is_cut_while_it_is_read_kills_nothing(made: Path, tmp_path: Path) -> None:
    file = shutil.copy(made / "0" / "model.gguf", tmp_path)
    done = subprocess.run([sys.executable, "-c", READ_AND_CUT, file], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"21\n"), done.stderr.decode()


def test_a_header_may_be_longer_than_most(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = made / "0" / "model.gguf"
    wanted = read_header(file)
    for first in (100, 1111):
        monkeypatch.setattr(header, "_HEADS", (first, 2**27))
        assert read_header(file) == wanted


def test_tensors_begin_at_multiples_of_the_alignment(made: Path, tmp_path: Path) -> None:
    data = bytearray((made / "0" / "model.gguf").read_bytes())
    name = b"blk.1.attn_norm.weight"
    at = data.index(name) + len(name) + 4 + 8 + 4  # behind dimensions, shape and type
    data[at : at + 8] = (int.from_bytes(data[at : at + 8], "little") + 4).to_bytes(8, "little")
    file = tmp_path / "odd.gguf"
    file.write_bytes(data)
    with pytest.raises(UsageError, match=r"tensor blk\.1\.attn_norm\.weight .* no multiple of 32"):
        model_folder(file)
