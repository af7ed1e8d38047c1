"""Processes that run one model together: launching, connecting, messages, shared sums."""
