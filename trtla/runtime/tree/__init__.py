"""Candidate trees: sources of drafts, chances, and the best nodes of a step."""
