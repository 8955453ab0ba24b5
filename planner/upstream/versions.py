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
    """Something that planner needs of torch, or follows in it, and that older versions do not have."""

    name: str
    since: tuple[int, int]
    why: str
    """What stands in the way before, with torch's file."""


_FEATURES = (
    Feature("init_sync of DistributedDataParallel", (2, 7), "its constructor has no such argument"),
    Feature("Muon", (2, 9), "torch.optim has no such optimizer"),
    Feature("checkpoints saved in the background", (2, 9), "others stage them (checkpoint/staging.py)"),
    Feature("pipelines", (2, 13), "stages agree on shapes during the first step (pipelining/stage.py)"),
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
    return installed() >= FEATURES[name].since


def require(name: str, *, place: str = "") -> None:
    """Raises TorchVersionError, which names the feature, where the torch of this process lacks it."""
    if has(name):
        return
    feature = FEATURES[name]
    known = "{}.{}".format(*feature.since)
    raise TorchVersionError(
        f"{name}: not with torch {importlib.metadata.version('torch')}: {feature.why}",
        allowed=f"torch {known} and newer",
        remedy=f"plan with torch {known}, whichever the job runs: software.torch says which",
        place=place,
    )
