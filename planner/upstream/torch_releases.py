"""Releases of torch: what each lacks, by name, and by how much plans of the same jobs differ between them."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

from planner.errors import TorchVersionError
from planner.versions import minor_of


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that planner needs of torch, or follows in it, and that not all versions have."""

    name: str
    since: tuple[int, int]
    why: str
    """What stands in the way in other versions, with torch's file."""
    broken_in: tuple[int, int] | None = None
    """The one version after `since` that has it, and fails."""

    @property
    def versions(self) -> str:
        """`torch 2.7 and newer`."""
        newer = "torch {}.{} and newer".format(*self.since)
        return f"{newer} but {'.'.join(map(str, self.broken_in))}" if self.broken_in else newer


_FEATURES = (
    Feature(
        "tensor parallelism by transformers' plans",
        (2, 7),
        "distribute_tensor has no src_data_rank (distributed/tensor/_api.py), which transformers 5.23 gives it",
    ),
    Feature("expert parallelism", (2, 7), "transformers 5.23 refuses it (configuration_utils.py)"),
    Feature(
        "experts that several ranks hold", (2, 8),
        "fully_shard cannot be told to sum their gradients (distributed/fsdp/_fully_shard/_fully_shard.py)",
    ),
    Feature(
        "frozen parameters of a dtype of their own in fully_shard",
        (2, 8),
        "its groups take one dtype (distributed/fsdp/_fully_shard/_fsdp_param_group.py)",
    ),
    Feature(
        "context parallelism over cuDNN's attention", (2, 6),
        "it cannot merge the logsumexp that cuDNN returns (distributed/tensor/experimental/_attention.py, _SDPAMerger)",
        broken_in=(2, 9),
    ),
    Feature("Muon", (2, 9), "torch.optim has no such optimizer"),
    Feature("checkpoints saved in the background", (2, 9), "others stage them (checkpoint/staging.py)"),
    Feature(
        "pipelines of a program", (2, 13),
        "before, stages agree on shapes during the first step (distributed/pipelining/stage.py)",
    ),
)  # fmt: skip
FEATURES = {feature.name: feature for feature in _FEATURES}


@cache
def installed() -> tuple[int, int]:
    """Major and minor of the torch of this process, without importing it."""
    major, minor = minor_of(importlib.metadata.version("torch")).split(".")
    return int(major), int(minor)


def since(major: int, minor: int) -> bool:
    """Whether the torch of this process is this version or a newer one."""
    return installed() >= (major, minor)


def has(name: str) -> bool:
    """Whether the torch of this process has a feature of the table."""
    feature = FEATURES[name]
    return since(*feature.since) and installed() != feature.broken_in


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


PEAKS = Path(__file__).with_name("version_peaks.json")
"""By version and example the peaks of allocated and reserved bytes of its fullest ranks, or why it is not planned;
written by `make torch-versions`."""

Peaks = Mapping[str, tuple[int, int] | str]


def read_peaks() -> Mapping[str, Peaks]:
    """By version (`2.13`), then by example."""
    content: dict[str, dict[str, list[int] | str]] = json.loads(PEAKS.read_text()) if PEAKS.exists() else {}
    return {
        version: {name: peaks if isinstance(peaks, str) else (peaks[0], peaks[1]) for name, peaks in examples.items()}
        for version, examples in content.items()
    }


def sort_versions(versions: Iterable[str]) -> list[str]:
    """From the oldest to the newest."""
    return sorted(versions, key=lambda version: tuple(map(int, version.split("."))))


SPECIAL_PARTS = frozenset({"pp", "cp", "tp", "ep", "compiled", "lora"})
"""Of the names of examples: what only some jobs have, and torch has changed."""


@cache
def largest_difference(one: str, other: str, parts: frozenset[str] = SPECIAL_PARTS) -> float:
    """The largest relative difference of reserved peaks over the examples that both versions (`2.9`) plan, and that
    have no other special part than these.

    Of a version without measurements nothing is known but this: it is the largest between any two.
    """
    if one == other:
        return 0.0
    known = read_peaks()
    pairs = [(one, other)] if one in known and other in known else combinations(known, 2)
    reserved = [
        (mine[1], theirs[1])
        for first, second in pairs
        for name in known[first].keys() & known[second].keys()
        if _special_parts(name) <= parts
        and not isinstance(mine := known[first][name], str)
        and not isinstance(theirs := known[second][name], str)
    ]
    return max((abs(mine - theirs) / min(mine, theirs) for mine, theirs in reserved), default=0.0)


def _special_parts(name: str) -> frozenset[str]:
    """`llama-3-8b-pp4` has pipelines."""
    return SPECIAL_PARTS & {word.rstrip("0123456789") for word in name.split("-")}
