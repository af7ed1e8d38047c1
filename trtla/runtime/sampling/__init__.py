"""Choosing tokens from logits: changes of rows, draws, predictions, acceptance."""
