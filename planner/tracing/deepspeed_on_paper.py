"""Runs DeepSpeed's engine on a paper GPU: the memory it finds there, and how far the host runs ahead.

Stage 3 gathers on one stream, computes on another and reduces on a third, and what it releases is marked as used by the
others. So that the host does not run ahead and the allocator take ever more, it waits for the third last event of its
gathers and of its reductions (0.19.8, partitioned_param_coordinator.py, stage3.py), unless they have passed already. On
a paper GPU that waits (`paper.gpu`) none has: the host is as far ahead as DeepSpeed lets it be. A reduction waits for
the computation before it; a gather does not, and is taken to be no faster than the computation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from planner import upstream
from planner.job.schema import Job
from planner.paper.compiled import users_kernels
from planner.paper.recorder import Recorder
from planner.paper.targets import target_of
from planner.paper.untouched_host import UntouchedHost
from planner.tracing.absent_host import AbsentHost
from planner.training.wraps import deepspeed_engine, deepspeed_library

_AVAILABLE = "deepspeed.accelerator.cuda_accelerator:CUDA_Accelerator.available_memory"


@contextmanager
def planned_for(job: Job, arch: str, recorder: Recorder, host: AbsentHost) -> Iterator[None]:
    """Inside, the engine finds as much memory free as the job's GPU would have, and writes nothing large on the host;
    its Triton kernels find a driver. Raises SpecError where DeepSpeed is not installed.
    """
    with users_kernels.launched_as_nothing(target_of(arch)):
        deepspeed_library.require("cuda", deepspeed_engine.stage_of(job))
        host.updates_in_place = True
        capacity = job.cluster.capacity_bytes
        left = recorder.requested_bytes()  # by another step of this process

        def available(_accelerator: Any, _device: Any = None) -> int:
            taken = recorder.requested_bytes() - left
            return capacity - taken if capacity > 0 else sys.maxsize  # of a GPU without a size

        memory = upstream.patch_targets("deepspeed memory", replaced={_AVAILABLE: available})
        with memory, UntouchedHost(host.ledger.pin):
            yield
