"""Errors that only the stand-in has: what the real library would answer in no defined way."""

from __future__ import annotations


class StandinUndefinedBehaviour(Exception):
    """The caller did something whose result in TensorRT-LLM is undefined or not known.

    The real library might crash, hang, return wrong tokens or work; the stand-in refuses loudly.
    """
