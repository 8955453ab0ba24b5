"""Raises the level of libraries' loggers for a while."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raise_log_levels(*names: str, level: int = logging.ERROR) -> Iterator[None]:
    """Inside, the loggers of these names show nothing below the level."""
    before = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in before:
        logger.setLevel(max(logger.level, level))
    try:
        yield
    finally:
        for logger, old in before.items():
            logger.setLevel(old)
