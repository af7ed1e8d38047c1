"""A patch for machines that look otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.extras.inspect.support import forget


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """A patch that also forgets the packages which were imported under it."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch
    forget()
