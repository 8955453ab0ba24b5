"""Where DeepSpeed's stage 3 waits for the GPU: memory that another stream has used is free again from there on.

It gathers on one stream, computes on another and reduces on a third, and what it releases is marked as used by the
others. So that the host does not run ahead and the allocator take ever more, it waits for the third last event of its
gathers and of its reductions (0.19.8, partitioned_param_coordinator.py, stage3.py), unless they have passed already.
Here none has: the host is as far ahead as DeepSpeed lets it be. A reduction waits for the computation before it; a
gather does not, and is taken to be no faster than the computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from planner.paper import facade
from planner.paper.recorder import Recorder
from planner.spec.job import Job
from planner.training.wraps import deepspeed_engine


@contextmanager
def told(job: Job, recorder: Recorder) -> Iterator[None]:
    """Inside, a job of DeepSpeed's own engine tells the recorder where it waits."""
    if not deepspeed_engine.chosen(job):
        yield
        return

    class Event(facade.Event):
        _at = 0

        def record(self, stream: Any = None) -> None:  # noqa: ARG002
            self._at = recorder.now()

        def query(self) -> bool:
            return False

        def synchronize(self) -> None:
            recorder.waited(self._at)

    def synchronize(_stream: facade.Stream) -> None:
        recorder.waited(recorder.now())

    with (
        mock.patch.object(torch.cuda, "Event", Event),
        mock.patch.object(facade.Stream, "synchronize", synchronize, create=True),
    ):
        yield
