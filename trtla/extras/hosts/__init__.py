"""Candidate trees inside other libraries' decoding loops."""
