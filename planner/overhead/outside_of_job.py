"""What a job holds outside of PyTorch's allocator, from the tables of overheads."""

from __future__ import annotations

from planner.job.schema import Job
from planner.layout.mesh import Mesh
from planner.overhead.estimate import OutsideEstimate, outside


def outside_of(job: Job) -> OutsideEstimate:
    """What lives outside the allocator, before any calibration: a communicator for each axis of more than one."""
    return outside(job.cluster.gpu, job.software, communicators_of(job))


def communicators_of(job: Job) -> list[int]:
    """The sizes of the groups of which a rank is a member."""
    return [degree for degree in Mesh.of(job.parallel).degrees if degree > 1]
