"""What torch's packages on PyPI are built for, by release."""

from __future__ import annotations

from planner.job.schema import Software

_CUDA = {
    "2.1": "12.1", "2.2": "12.1", "2.3": "12.1", "2.4": "12.1", "2.5": "12.4", "2.6": "12.4", "2.7": "12.6",
    "2.8": "12.8", "2.9": "12.8", "2.10": "12.8",
}  # fmt: skip
"""Release notes of torch 2.1 to 2.11 (github.com/pytorch/pytorch/releases): from 2.11 on CUDA 13.0."""


def cuda_of(torch: str) -> str:
    """The CUDA of a release (`2.6`: `12.4`); of one that is not listed that of a spec that says nothing."""
    return _CUDA.get(torch, Software().cuda)
