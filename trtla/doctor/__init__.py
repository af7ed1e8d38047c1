"""Descriptions of this machine, a model or a folder, and of what runs on it."""
