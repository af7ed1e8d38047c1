"""The draft tree: branches that begin alike share nodes, paths and their order are kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtla.runtime.draft import depths
from trtla.runtime.drafters.lookahead import DraftTree, shallow_nodes

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


def test_three_ngrams_share_what_they_begin_with():
    tree, ends = merged(["abcdef", "abcxyz", "abqrst"])
    assert "".join(tree.tokens) == "abcdefxyzqrst"  # 13 nodes for 18 tokens
    assert tree.parents == [0, 1, 2, 3, 4, 5, 3, 7, 8, 2, 10, 11, 12]
    assert ends == [6, 9, 13]


@given(branches)
def test_merged_paths_are_the_branches_prefixes_each_once(several):
    tree, ends = merged(several)
    prefixes = {tuple(branch[:end]) for branch in several for end in range(len(branch) + 1)}
    assert len(paths(tree)) == len(prefixes | {()})
    assert set(paths(tree)) == prefixes | {()}
    assert [paths(tree)[end] for end in ends] == [tuple(branch) for branch in several]
    assert all(parent <= node for node, parent in enumerate(tree.parents))


@given(branches)
def test_appended_branches_keep_nodes_of_their_own(several):
    tree = DraftTree()
    for branch in several:
        tree.append(branch)
    assert tree.tokens == [token for branch in several for token in branch]
    leaves = set(range(1, len(tree.tokens) + 1)) - set(tree.parents)
    assert [paths(tree)[leaf] for leaf in sorted(leaves)] == [tuple(b) for b in several]


@given(branches, branches)
def test_a_merged_tree_tells_where_its_nodes_are(first, second):
    whole = DraftTree()
    for branch in first:
        whole.append(branch)
    tree, _ = merged(second)
    nodes = tree.merge_tree(whole.tokens, whole.parents)
    assert [paths(tree)[node] for node in nodes] == paths(whole)
    assert len(set(paths(tree))) == len(paths(tree))


@given(branches)
def test_branches_do_not_join_what_is_fed_as_it_is(several):
    fed = DraftTree([7, 8, 9], [0, 1, 0])
    for branch in several:
        fed.merge(branch)
    assert (fed.tokens[:3], fed.parents[:3]) == ([7, 8, 9], [0, 1, 0])
    assert not set(fed.parents[3:]) & {1, 2, 3}


@given(branches, st.integers(0, 5))
def test_shallow_nodes_are_those_above_a_depth(several, depth):
    tree, _ = merged(several)
    found = shallow_nodes(tuple(tree.parents), depth)
    deep = depths(tree.parents)
    assert found == tuple(node for node in range(1, len(deep)) if deep[node] <= depth)
