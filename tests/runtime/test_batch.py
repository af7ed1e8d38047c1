"""The attention bias of one sequence, with query heads folded into the query axis."""

from __future__ import annotations

import pytest
import torch

from tests.support.toys import request
from trtla.runtime.draft import Draft, NoDrafter
from trtla.runtime.models.batch import make_batch
from trtla.runtime.models.tensor_cache import TensorCache
from trtla.runtime.sequence import Feed, Sequence
from trtla.settings.lookahead import LookaheadConfig


def step(prompt_len, parents):
    lookahead = LookaheadConfig(2, 3, 2)
    sequence = Sequence(request([1] * prompt_len, 8), lookahead, NoDrafter())
    sequence.num_cached, sequence.output_ids, sequence.blocks = prompt_len, [5], (0, 1)
    return Feed.step(sequence, Draft(tuple(range(len(parents))), parents, read=(0, len(parents))))


def ancestors(node, parents):
    return {node} if node == 0 else {node} | ancestors(parents[node - 1], parents)


@pytest.mark.parametrize("group_size", [1, 3])
def test_every_fold_sees_the_cache_and_its_own_ancestors(group_size):
    parents = (0, 1, 0, 3, 3)
    cache = TensorCache(1, 1, 2, 2, torch.float32, torch.device("cpu"))
    batch = make_batch([step(4, parents)], cache, group_size, torch.float32)
    bias = batch.groups[0].bias
    assert bias.shape == (1, 1, group_size * 6, 10)
    for row, hidden in enumerate(bias[0, 0].tolist()):
        seen = {slot for slot, value in enumerate(hidden) if value == 0.0}
        assert seen == {0, 1, 2, 3} | {4 + node for node in ancestors(row % 6, parents)}


def test_positions_lengths_and_rows_follow_from_the_tree():
    cache = TensorCache(1, 1, 2, 2, torch.float32, torch.device("cpu"))
    batch = make_batch([step(4, (0, 1, 0))], cache, 1, torch.float32)
    assert batch.positions.tolist() == [4, 5, 6, 5]
    assert batch.lengths.tolist() == [5, 6, 7, 6]
    assert batch.rows.tolist() == [0, 1, 2, 3]
