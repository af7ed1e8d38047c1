"""Parts of a lookahead draft: its tree; its pool, by vectors of lade and TensorRT-LLM."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtla.runtime.draft import depths
from trtla.runtime.drafters.lookahead import DraftTree, NgramPool, shallow_nodes

branches = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=8)


def paths(tree):
    """The text below the input of every node, node 0 first."""
    found = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((*found[parent], token))
    return found


def merged(several):
    tree = DraftTree()
    ends = [tree.merge(branch) for branch in several]
    return tree, ends


@given(branches)
def test_merged_paths_are_the_branches_prefixes_each_once(several):
    tree, ends = merged(several)
    prefixes = {tuple(branch[:end]) for branch in several for end in range(len(branch) + 1)}
    assert len(paths(tree)) == len(prefixes | {()})
    assert set(paths(tree)) == prefixes | {()}
    assert [paths(tree)[end] for end in ends] == [tuple(branch) for branch in several]
    assert all(parent <= node for node, parent in enumerate(tree.parents))


@given(branches, branches)
def test_a_merged_tree_tells_where_its_nodes_are(first, second):
    whole = DraftTree()
    for branch in first:  # on nodes of their own
        whole.append(branch)
    assert whole.tokens == [token for branch in first for token in branch]
    tree, _ = merged(second)
    nodes = tree.merge_tree(whole.tokens, whole.parents)
    assert [paths(tree)[node] for node in nodes] == paths(whole)
    assert len(set(paths(tree))) == len(paths(tree))


@given(branches, st.integers(0, 5))
def test_shallow_nodes_are_those_above_a_depth(several, depth):
    tree, _ = merged(several)
    found = shallow_nodes(tuple(tree.parents), depth)
    deep = depths(tree.parents)
    assert found == tuple(node for node in range(1, len(deep)) if deep[node] <= depth)


def ids(text):
    return tuple(ord(c) for c in text)


def texts(values):
    return ["".join(chr(i) for i in value) for value in values]


def test_09_published_vector():
    pool = NgramPool(ngram_size=4, capacity=5)
    pool.insert_text(ids("hello world; hello world. live is life."))
    assert texts(pool.lookup(ord("l"))) == ["lo ", "o w", "d. ", "ive", "ife"]
    for key, value in zip("lvwxy", ("abc", "de1", "234", "5hi", "jkm"), strict=True):
        pool.insert(ord(key), ids(value))
    assert texts(pool.lookup(ord("l"))) == ["o w", "d. ", "ive", "ife", "abc"]
    assert texts(pool.lookup(ord("w"))) == ["orl", "234"]
    for value in ("dog", "cat", "abc"):
        pool.insert(ord("l"), ids(value))
    assert texts(pool.lookup(ord("l"))) == ["ive", "ife", "dog", "cat", "abc"]


@given(
    st.integers(2, 5),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=40),
)
def test_09_rules(ngram_size, capacity, insertions):
    pool, model = NgramPool(ngram_size, capacity), {}
    for key, number in insertions:
        value = (number,) * (ngram_size - 1)
        pool.insert(key, value)
        kept = [v for v in model.get(key, []) if v != value] + [value]
        model[key] = kept[-capacity:] if capacity else []
    for key in range(3):
        assert pool.lookup(key) == model.get(key, [])
    assert len(pool) == sum(map(len, model.values()))


def test_short_texts_hold_no_ngrams():
    pool = NgramPool(4, 3)
    pool.insert_text((1, 2, 3))
    assert len(pool) == 0


def test_capacity_0_and_ngram_1_store_nothing():
    for pool in (NgramPool(4, 0), NgramPool(1, 3)):
        pool.insert_text((1, 2, 3, 4, 5))
        assert len(pool) == 0
