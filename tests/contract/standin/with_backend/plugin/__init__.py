"""The builder's plugins; TensorRT-LLM plugin."""

from __future__ import annotations

from .plugin import PluginConfig, add_plugin_argument, cli_plugin_args

__all__ = ["PluginConfig", "add_plugin_argument", "cli_plugin_args"]
