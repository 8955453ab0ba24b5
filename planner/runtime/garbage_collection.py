"""Python's cyclic garbage collector, while very many objects are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_RARE_THRESHOLDS = 100_000, 50, 50
"""Objects until a collection, and collections until one of older objects (gc.set_threshold)."""


def collect_rarely_until_exit() -> None:
    """For the process of one command: importing torch makes very many objects, which CPython looks at again and again
    (700, 10, 10), a tenth of a plan's time."""
    gc.set_threshold(*_RARE_THRESHOLDS)


def skip_collection_at_exit() -> None:
    """The interpreter looks at all objects when it ends, a second after a plan, to free what the kernel frees."""
    gc.freeze()


@contextmanager
def look_at_new_objects() -> Iterator[None]:
    """Inside, a collection looks at what was made inside: it takes milliseconds where all of torch takes a second. What
    was frozen before stays so."""
    nothing_frozen = gc.get_freeze_count() == 0
    gc.freeze()
    try:
        yield
    finally:
        if nothing_frozen:
            gc.unfreeze()


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
