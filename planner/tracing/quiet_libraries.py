"""Silences warnings of libraries in a traced step: about speed and style, none about memory."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LIBRARIES = ("accelerate", "deepspeed", "DeepSpeed", "huggingface_hub", "peft", "torch", "transformers")


@contextmanager
def libraries() -> Iterator[None]:
    """Inside, Python's warnings are not shown, and of the libraries' own logs errors alone."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES] + list(_below())
    before = [(logger, logger.level) for logger in loggers]
    for logger in loggers:
        logger.setLevel(max(logger.level, logging.ERROR))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in before:
            logger.setLevel(level)


def _below() -> Iterator[logging.Logger]:
    """Loggers of the libraries' modules that have a level of their own, and would not ask the one above."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level and name.partition(".")[0] in _LIBRARIES:
            yield logger
