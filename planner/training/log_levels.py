"""Raises the level of a library's logger for a while."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raise_log_level(name: str, level: int = logging.ERROR) -> Iterator[None]:
    """Inside, the logger of that name shows nothing below the level."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
