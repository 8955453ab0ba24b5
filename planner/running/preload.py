"""Imports what every program's rank needs, in a process that then forks for each of them."""

from __future__ import annotations

import importlib


def load() -> None:
    """Import, and register the paper GPU's kernels. Nothing is run: autograd's threads do not survive a fork."""
    from planner import paper  # before torch
    from planner.running import on_paper  # noqa: F401

    importlib.import_module("torch._dynamo")
    with paper.gpu("sm_90"):
        return
