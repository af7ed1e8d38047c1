"""Tuning: the search for the best lookahead triple of a model, a machine and kinds of text."""
