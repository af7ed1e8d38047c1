"""What this machine, a model and a folder are, and what can be done with them."""
