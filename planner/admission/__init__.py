"""Admission: one decision about a submitted job, and a hook for each system that jobs are submitted through.

Never plans by itself, imports torch, Ray or the service, or reads a file or an address because a job names it.
Called by the command line and by the hooks of Ray, Slurm and Kubernetes, on installs that have nothing but PyYAML.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Ray's loader of hooks splits at the last dot, and so asks here for the `check` of `ray_jobs:check`."""
    if name == "ray_jobs:check":
        from planner.admission.ray_jobs import check

        return check
    raise AttributeError(name)
