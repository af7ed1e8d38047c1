"""The executor of the PyTorch backend: requests, resources, the loop."""
