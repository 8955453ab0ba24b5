"""Quiets libraries for a while."""

from __future__ import annotations

import logging
import warnings
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


_LIBRARIES = ("accelerate", "deepspeed", "DeepSpeed", "huggingface_hub", "peft", "torch", "transformers")


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Inside, Python's warnings are not shown, and of the libraries' own logs errors alone."""
    # Loggers of modules that have a level of their own do not ask the one above.
    own = [
        name
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and logger.level and name.partition(".")[0] in _LIBRARIES
    ]
    with raise_log_levels(*_LIBRARIES, *own), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
