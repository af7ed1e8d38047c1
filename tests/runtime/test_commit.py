"""Where an output ends: what is looked at, and what is not."""

from __future__ import annotations

from tests.support.toys import request
from trtla.runtime.request import committed_prefix


class Unreadable(list):
    """Output ids that must not be copied: the copy would grow with the output."""

    def __iter__(self):
        raise AssertionError("the output was read")


def test_without_stop_strings_the_output_so_far_is_not_read():
    output = Unreadable([1, 2, 3])
    assert committed_prefix(request([1], 10), output, (4, 5)) == (2, None)
    assert committed_prefix(request([1], 10, end_ids=[5]), output, (4, 5, 6)) == (2, "end_id")
    assert committed_prefix(request([1], 4), output, (4, 5)) == (1, "length")
