"""Models: fed tokens in, logits out."""
