"""From logits to tokens: draws, predictions, acceptance."""
