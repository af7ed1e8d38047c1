"""The roofline of a GPU: bytes at one token, operations at many, and published peaks."""

from __future__ import annotations

import pytest

from trtla.errors import UsageError
from trtla.extras.bench.tune.prediction import GPUS, Roofline, check_gpu
from trtla.formats.config import CheckpointConfig

LLAMA_3_8B = CheckpointConfig(
    architecture="LlamaForCausalLM", dtype="bfloat16", vocab_size=128256, hidden_size=4096,
    num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_size=128,
    intermediate_size=14336, max_position_embeddings=8192,
)  # fmt: skip


def test_one_token_takes_as_long_as_reading_the_weights():
    roof = Roofline(LLAMA_3_8B, GPUS["h100"], context=0)
    layers_and_head = 7.504e9 * 2  # bytes, without the embedding
    assert roof.seconds(1, 1) == pytest.approx(layers_and_head / 3.35e12, rel=0.01)
    assert roof.seconds(1, 128) == roof.seconds(1, 1)  # tokens are free on this side of the knee
    assert roof.seconds(1, 1024) == pytest.approx(1024 * layers_and_head / 989e12, rel=0.01)


def test_a_cache_and_more_sequences_cost_more():
    short = Roofline(LLAMA_3_8B, GPUS["a100"], context=0)
    long = Roofline(LLAMA_3_8B, GPUS["a100"], context=8000)
    assert long.seconds(1, 1) > short.seconds(1, 1)
    assert long.seconds(16, 1) > long.seconds(1, 1)


def test_layers_with_a_window_read_no_more_than_it():
    windows = (1000, None) * 16  # on average 4500 of 8000
    local = LLAMA_3_8B.model_copy(update={"layer_windows": windows})
    for context, whole in ((8000, 4500), (500, 500)):
        found = Roofline(local, GPUS["a100"], context)
        expected = Roofline(LLAMA_3_8B, GPUS["a100"], whole)
        for fed in (1, 1000):
            assert found.seconds(4, fed) == pytest.approx(expected.seconds(4, fed))


def test_fp8_weights_halve_the_bytes_of_the_layers():
    fp8 = LLAMA_3_8B.model_copy(
        update={"quantization": LLAMA_3_8B.quantization.model_copy(update={"quant_algo": "FP8"})}
    )
    gpu = GPUS["h200"]
    ratio = Roofline(fp8, gpu, 0).seconds(1, 1) / Roofline(LLAMA_3_8B, gpu, 0).seconds(1, 1)
    assert 0.5 < ratio < 0.56  # the head stays in 16 bits


def test_the_note_says_that_it_is_a_bound_and_of_what():
    note = Roofline(LLAMA_3_8B, GPUS["l40s"], 100).note
    assert note.endswith("not a measurement")
    assert all(part in note for part in ("a bound", "0.864 TB/s", "362.05 TFLOPS"))


@pytest.mark.parametrize("gpu", GPUS)
def test_every_gpu_has_a_curve_that_never_falls(gpu):
    for _, points in Roofline(LLAMA_3_8B, GPUS[gpu], 500).table(16).rows:
        seconds = [s for _, s in points]
        assert seconds == sorted(seconds)


def test_an_unknown_gpu_is_refused_with_the_known_ones():
    assert check_gpu("H100") == "h100"
    with pytest.raises(UsageError, match="gpu tpu is not known") as refused:
        check_gpu("tpu")
    assert "h100" in str(refused.value.hint)
