"""The commands that measure: bench, tune, summarize, report."""
