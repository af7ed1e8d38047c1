"""What this machine's library computes, as digests: run as `python -m tests.support.bits`.

Its JSON document says from where the libraries came, and of every type of weights the digest of
logits, of choices, and of what candidate trees plan.
"""

from __future__ import annotations

import hashlib
import json

import torch

from tests.support.compiled import (
    KINDS,
    NAMES,
    config_of,
    name_of,
    native_of,
    sized,
    text,
    weights_in,
    weights_of,
)
from tests.support.sanitized_forwards import rows, step
from tests.support.tree_sessions import Session
from trtla.runtime.models.cpu import library as native
from trtla.runtime.models.cpu.llama import native_problem
from trtla.runtime.models.cpu.native_code import FORWARD, TREES
from trtla.runtime.threads import set_threads
from trtla.settings.sampling import SamplingParams

PROMPTS = (70, 33, 1)


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def logits(config, weights, dtype, **more) -> str:
    prompts = [text(i, length, config.vocab_size) for i, length in enumerate(PROMPTS)]
    model = native_of(config, weights, dtype, **more)
    return digest(step(model, prompts, 2).numpy().tobytes())


def forwards() -> dict[str, str]:
    """Of weights in floats and in blocks, in every arithmetic that this processor has."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        for name, keys in KINDS.items():
            config = config_of(**keys)
            if native_problem(config, name_of(dtype)) is None:
                found[f"{name} {dtype}"] = logits(config, weights_of(config, torch.float16), dtype)
        for name in NAMES:
            config = sized(quantization={"quant_algo": None})
            blocks = weights_in(config, lambda _, name=name: name)
            found[f"{name} {dtype}"] = logits(config, blocks, dtype, int8_cache=name == "Q8_0")
    return found


def choices() -> str:
    """Tokens and log probabilities of rows of every sort."""
    chooser, found = native.RowChooser(), rows(333).numpy()
    params = SamplingParams(temperature=0.7, top_k=50, top_p=0.9)
    drawn = [chooser.draw(found, row, params, 0.37) for row in range(len(found))]
    ids, logs = chooser.top_rows(found, range(len(found)), 16)
    return digest(json.dumps(drawn).encode(), ids.tobytes(), logs.tobytes())


def trees() -> str:
    """The nodes that random requests are given."""
    session = Session(5)
    for _ in range(25):
        session.step()
    return digest(repr(session.calls.drafts).encode())


def main() -> None:
    """Print the document."""
    set_threads(1)
    loaded = [code.load()._name for code in (FORWARD, TREES)]
    computed = {**forwards(), "choices": choices(), "trees": trees()}
    print(json.dumps({"libraries": loaded, "computed": computed}))


if __name__ == "__main__":
    main()
