"""Python's cyclic garbage collector, while very many objects are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_collection() -> Iterator[None]:
    """Inside, cyclic garbage is collected only where it is asked for: a trace makes many objects, none of them garbage,
    and each look at all of the events takes as long as them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
