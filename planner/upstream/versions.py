"""What torch lacks up to a version, by name: the one table that plans, programs, errors and docs/torch.md read."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from functools import cache

from planner.errors import TorchVersionError

CUDNN_ATTENTION = (2, 9)
"""The first that takes cuDNN's attention by itself, and has rules for it in DTensor."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that planner needs of torch, or follows in it, and that not all versions have."""

    name: str
    since: tuple[int, int]
    why: str
    """What stands in the way in other versions, with torch's file."""

    @property
    def versions(self) -> str:
        """`torch 2.7 and newer`."""
        return "torch {}.{} and newer".format(*self.since)


_FEATURES = (
    Feature("init_sync of DistributedDataParallel", (2, 7), "its constructor has no such argument"),
    Feature("Muon", (2, 9), "torch.optim has no such optimizer"),
    Feature("checkpoints saved in the background", (2, 9), "others stage them (checkpoint/staging.py)"),
    Feature(
        "pipelines of a program",
        (2, 13),
        "before, stages agree on shapes during the first step (distributed/pipelining/stage.py)",
    ),
)
FEATURES = {feature.name: feature for feature in _FEATURES}


@cache
def installed() -> tuple[int, int]:
    """Major and minor of the torch of this process, without importing it."""
    major, minor = importlib.metadata.version("torch").split(".")[:2]
    return int(major), int(minor)


def since(major: int, minor: int) -> bool:
    """Whether the torch of this process is this version or a newer one."""
    return installed() >= (major, minor)


def has(name: str) -> bool:
    """Whether the torch of this process has a feature of the table."""
    return since(*FEATURES[name].since)


def require(name: str, *, place: str = "") -> None:
    """Raises TorchVersionError, which names the feature, where the torch of this process lacks it."""
    if has(name):
        return
    feature = FEATURES[name]
    raise TorchVersionError(
        f"{name}: not with torch {importlib.metadata.version('torch')}: {feature.why}",
        allowed=feature.versions,
        remedy="plan with one of these, whichever the job runs: software.torch says which",
        place=place,
    )
