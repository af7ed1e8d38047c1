"""Arms that decode the same work in turns, and the figures of their runs."""
