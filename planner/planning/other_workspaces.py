"""What is reserved where cuDNN asks for other workspaces than it does without a GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.events import Alloc, Event

_OF_CONVOLUTIONS = "cudnn_convolution.workspace"
LARGEST_DIFFERENCE = 0.09
"""Between the workspaces that cuDNN 9.20 asks for by properties of an H100 and by a handle of one: 38 of the 225 of
VGG19 differ, by 0.1 to 9 %, and of eight networks on A100 and RTX 4090 none. Reserved bytes were up to 28 % apart, as a
cache is cut up otherwise."""
_REPLAYS = 16
_SHARE = 0.5
"""Of the sizes, how many are changed in each replay. So the eight networks lie between the replays."""


def has_workspaces(events: Sequence[Event]) -> bool:
    """Whether cuDNN was asked for a convolution in them."""
    return any(_is_workspace(event) for event in events)


def vary(events: Sequence[Event]) -> Iterator[tuple[Event, ...]]:
    """The same with other workspaces of convolutions, equal ones alike; nothing where there are none."""
    places = [place for place, event in enumerate(events) if _is_workspace(event)]
    for seed in range(_REPLAYS if places else 0):
        drawn, sizes, varied = random.Random(seed), dict[int, int](), list(events)
        for place in places:
            alloc = events[place]
            assert isinstance(alloc, Alloc)
            asked = alloc.requested_bytes
            if asked not in sizes:
                difference = drawn.uniform(-LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)
                sizes[asked] = max(round(asked * (1 + difference * (drawn.random() < _SHARE))), 1)
            varied[place] = replace(alloc, requested_bytes=sizes[asked])
        yield tuple(varied)


def _is_workspace(event: Event) -> bool:
    return isinstance(event, Alloc) and event.origin is not None and event.origin.op == _OF_CONVOLUTIONS
