"""The panels that C++ lays out against those of NumPy, in every type and at every cut."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.support.compiled import needs_compiler
from tests.support.gguf_models import write_gguf
from tests.support.models import make_model
from tests.support.plain_panels import alternate, block_panels, plain_panels
from tests.support.ranks import WIDE
from trtla.errors import UsageError
from trtla.formats.blocks import BLOCK_TYPES, BlockTensor
from trtla.formats.model import Model
from trtla.runtime.models.cpu import packing
from trtla.runtime.models.cpu.library import library
from trtla.runtime.models.cpu.packing import Packer, pack_model
from trtla.runtime.models.tensors import placed
from trtla.runtime.threads import set_threads

pytestmark = needs_compiler
INPUTS = 512
ARITHMETICS = ("float32", "bfloat16")


@pytest.fixture(
    params=[1 << 10, 1 << 20], ids=["a panel at a time", "many at a time"], autouse=True
)
def piece_bytes(request, monkeypatch):
    monkeypatch.setattr(packing, "_PIECE_BYTES", request.param)


def blocks_of(kind, outputs, seed=0):
    """Any bytes: what they mean does not matter."""
    bits = np.random.default_rng(seed)
    return BlockTensor(kind, bits.integers(0, 256, (outputs, kind.row_bytes(INPUTS)), np.uint8))


def packed(arithmetic, *parts, **more):
    packer = Packer(arithmetic)
    matrix = packer.matrix(*parts, **more)
    packer.run()
    return matrix


@pytest.mark.parametrize("outputs", [64, 75])
@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_blocks_of_every_type(name, outputs):
    weight, lanes = blocks_of(BLOCK_TYPES[name], outputs), library().lanes
    for arithmetic in ARITHMETICS:
        found = packed(arithmetic, weight)
        assert np.array_equal(found.weight, block_panels(weight, lanes))
        assert (found.outputs, found.inputs, found.stored) == (outputs, INPUTS, name)


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_parts_follow_each_other_or_take_turns(name):
    kind, lanes = BLOCK_TYPES[name], library().lanes
    one, other = blocks_of(kind, 64, seed=1), blocks_of(kind, 64, seed=2)
    behind = BlockTensor(kind, np.concatenate((one.rows, other.rows)))
    turns = BlockTensor(kind, alternate(lanes, one.rows, other.rows))
    for wanted, more in ((behind, {}), (turns, {"alternate": True})):
        found = packed("float32", one, other, **more)
        assert np.array_equal(found.weight, block_panels(wanted, lanes))


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_plain_numbers_and_biases(dtype, arithmetic):
    numbers = np.random.default_rng(0).standard_normal((75, 96)).astype(dtype)
    biases = np.arange(75, dtype=np.float32)
    found, lanes = packed(arithmetic, numbers, biases=biases), library().lanes
    paired = arithmetic == "bfloat16" and library().has_bfloat16_products
    assert np.array_equal(found.weight, plain_panels(placed(numbers, arithmetic), lanes, paired))
    assert np.array_equal(found.bias[:75], biases)
    assert not found.bias[75:].any()
    assert len(found.bias) % (2 * lanes) == 0


@pytest.mark.parametrize("kind", ["Q4_0", "F16"])
def test_what_is_in_a_file_is_packed_as_what_is_in_memory(kind, tmp_path):
    """Threads read rows of heads that lie in another order, and of parts that lie apart."""
    engine = Model.at(write_gguf(make_model(WIDE), tmp_path / "m.gguf", kind)).open(None)
    config = engine.config.pretrained_config
    wanted = pack_model(config, engine.weights(), "float32")
    set_threads(3)
    try:
        with engine.stored_weights() as weights:
            found = pack_model(config, weights, "float32")
    finally:
        set_threads(1)
    assert found.matrices.keys() == wanted.matrices.keys()
    for name, matrix in wanted.matrices.items():
        assert np.array_equal(found.matrices[name].weight, matrix.weight), name
    for name, vector in wanted.vectors.items():
        assert np.array_equal(found.vectors[name], vector), name


def test_a_file_that_is_cut_while_it_is_read(tmp_path):
    path = write_gguf(make_model(WIDE), tmp_path / "m.gguf", "Q4_0")
    engine = Model.at(path).open(None)
    with engine.stored_weights() as weights:
        tensors = list(weights)
        tensors[0][1].read(0, 1)  # it is open
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        with pytest.raises(UsageError, match="has changed while it was read"):
            pack_model(engine.config.pretrained_config, tensors, "float32")
