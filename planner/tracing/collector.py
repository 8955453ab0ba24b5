"""Python's cyclic garbage collector, where hundreds of thousands of events come into being and none is garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def off() -> Iterator[None]:
    """Inside, garbage is collected only where it is asked for: each look at all of the events takes as long as them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
