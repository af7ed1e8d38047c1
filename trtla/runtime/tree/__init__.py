"""Candidate trees: the sources of drafts, chances, and the choice of a step's nodes."""
