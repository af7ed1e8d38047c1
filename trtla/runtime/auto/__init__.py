"""Adaptive drafting: the costs of steps, and the nodes of candidate trees that pay."""
