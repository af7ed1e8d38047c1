"""Processes that run one model together: tensor parallelism on torch.distributed."""
