"""What a program took of its GPUs, as values and as the JSON object `planner.measured-program/1`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import MeasureError
from planner.measuring.measurement import Levels
from planner.measuring.reading import read_as

SCHEMA = "planner.measured-program/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRank:
    """One rank, on the device of which it took the most. Peaks are those of the whole process, resets or not."""

    rank: int
    host: str
    gpu: str
    uuid: str
    total_bytes: int
    peak: Levels
    end: Levels
    device_bytes_at_end: int = 0
    """NVML's figure of the process when it ended; 0 where the driver does not say."""
    cache_releases: int = 0
    resets: int = 0
    """How often the program has set its counters back."""
    processes: int = 1
    """How many processes of this rank took memory: restarts, or processes that the program starts itself. The
    figures are those of the one that took the most."""
    devices: int = 1
    """Of how many devices that process took memory."""
    ended_by: str = ""
    """The exception that ended it."""
    snapshot: str = ""
    software: Mapping[str, str] = field(default_factory=dict)
    allocator_conf: str = ""

    @property
    def outside_bytes(self) -> int:
        """Beside the allocator at the end; 0 where the driver does not say what the process holds."""
        return max(0, self.device_bytes_at_end - self.end.reserved_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWithoutFigures:
    """A rank of the launch line that left no figures, and what is known of why."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProgram:
    """A launch line that ran. `exit_code` is that of the command, 128 and the signal's number if a signal ended it."""

    command: tuple[str, ...]
    exit_code: int
    date: str
    seconds: float
    world_size: int
    ranks: tuple[MeasuredRank, ...] = ()
    without_figures: tuple[RankWithoutFigures, ...] = ()


def write(path: Path, found: MeasuredProgram) -> None:
    """One JSON object. Raises MeasureError where it cannot be written."""
    document = {"schema": SCHEMA, **dataclasses.asdict(found)}
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> MeasureError:
    """The error for a place where nothing can be written."""
    return MeasureError(
        f"{path} cannot be written: {error.strerror}",
        allowed="a file in a folder that is there and can be written to",
        remedy="--output FILE.json",
        place="--output",
    )


def is_measured_program(document: Mapping[str, Any]) -> bool:
    """Whether :func:`write` wrote it."""
    return document.get("schema") == SCHEMA


def from_json(document: Mapping[str, Any]) -> MeasuredProgram:
    """The program that :func:`write` wrote. Raises MeasureError if the document is none."""
    given = {name: value for name, value in document.items() if name != "schema"}
    found = read_as(MeasuredProgram, given, "measured program")
    assert isinstance(found, MeasuredProgram)
    return found
