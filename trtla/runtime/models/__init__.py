"""Models of the torch executor: fed tokens in, logits out, in PyTorch or compiled C++."""
