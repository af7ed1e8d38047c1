"""Shared parts of the commands: options, values, presets, and the opening of models."""
