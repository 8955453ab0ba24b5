"""Explains a snapshot that somebody has sent, where it may take seconds and may be ended."""

from __future__ import annotations

from typing import Any

from planner.report.snapshot_explained import explain


def read_replay(content: bytes, conf: str) -> dict[str, Any]:
    """The document that answers it; `conf` is `=` and a PYTORCH_ALLOC_CONF, or empty where none is asked for."""
    return explain(content, conf.removeprefix("=") if conf else None)
