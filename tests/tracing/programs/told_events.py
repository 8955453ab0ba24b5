"""What a piece of code asks of the paper GPU, as lines that a test can compare whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner import paper
from planner.events import Alloc, Free


def told_events(code: Callable[[], Any]) -> list[str]:
    """`+ op 2x3 dtype` for a block that is taken, `- op 2x3` for one that is given back, in order; what the code
    returns is kept until the end. Frees that follow one another are sorted: their order is that of threads."""
    with paper.gpu("sm_90") as gpu:
        kept = code()
        gpu.recorder.settle()
        events = gpu.recorder.events()
        del kept
    names, lines, freed = {}, [], []
    for event in events:
        if isinstance(event, Alloc) and event.origin is not None:
            name = f"{event.origin.op.partition('.')[2]} {'x'.join(map(str, event.origin.shape))}"
            names[event.block] = name
            lines += [*sorted(freed), f"+ {name} {event.origin.dtype}"]
            freed = []
        elif isinstance(event, Free):
            freed.append(f"- {names[event.block]}")
    return [*lines, *sorted(freed)]
