"""Distributions of texts that were drawn, and how far two of them may be from each other."""

from __future__ import annotations

from collections import Counter

import torch

from tests.support.draft_models import DRAFT, decode
from tests.support.examples import examples
from tests.support.tensors import probabilities
from tests.support.toys import request
from trtla.settings.drafting import DrafterSettings

CHOSEN = DrafterSettings(DRAFT, gamma=3, rejection=True)
COUNT = max(500, examples(1000).max_examples)


def law(scores, prompt, length, params):
    """The exact distribution of the next tokens."""
    texts = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, mass in texts.items():
            row = torch.tensor([scores([*prompt, *text])], dtype=torch.float64)
            for token, share in enumerate(probabilities(row, params)[0].tolist()):
                if share:
                    longer[(*text, token)] = mass * share
        texts = longer
    return texts


def distance(counts, expected, count):
    """Total variation."""
    keys = set(counts) | set(expected)
    return sum(abs(counts.get(key, 0) / count - expected.get(key, 0.0)) for key in keys) / 2


def floor(expected, count):
    """What total variation chance alone gives: the largest of 40 samples of the law itself."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.tensor(list(expected.values()), dtype=torch.float64)
    worst = 0.0
    for _ in range(40):
        drawn = torch.multinomial(weights, count, replacement=True, generator=generator)
        sampled = Counter(list(expected)[i] for i in drawn.tolist())
        worst = max(worst, distance(sampled, expected, count))
    return worst


def sampled_texts(target, draft, vocab, length, chosen=CHOSEN, **sampling):
    """How often each text came out, over seeds, and the drafters' totals."""
    asked = [request([1, 0], length, None, i, seed=i, **sampling) for i in range(COUNT)]
    done = decode(target, draft, vocab, asked, chosen)
    return Counter(tuple(done.text(i)) for i in range(COUNT)), done.group.totals
