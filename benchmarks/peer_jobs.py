"""The jobs of benchmarks/peers.py: what was measured of them, where they are described, which tools take them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "peer_jobs"
PROGRAMS = FOLDER.parent.parent / "tests" / "tracing" / "programs"
CONTEXT = 128
"""Tokens of the recorded program lm24-train-ctx128."""
TOOLS = ("planner", "MemTracker", "accelerate", "DeepSpeed", "SimuMax")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes as torch.cuda.memory_stats has them; `figure` is allocated, active or reserved."""

    figure: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerJob:
    """One of spec (a job spec of planner), program (one of tests/tracing/programs) and simumax says what it is."""

    name: str
    source: str
    measured: Measured
    tools: tuple[str, ...]
    others: Mapping[str, str]
    """Why the other tools do not take it."""
    spec: str = ""
    program: str = ""
    simumax: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec_path(self) -> Path:
        return FOLDER / self.spec


def read() -> list[PeerJob]:
    """All of them, in the order of the file; ValueError for one that leaves a tool out without saying why."""
    found = []
    for entry in yaml.safe_load((FOLDER / "jobs.yaml").read_text(encoding="utf-8")):
        job = PeerJob(**{**entry, "measured": Measured(**entry["measured"]), "tools": tuple(entry["tools"])})
        if {*job.tools, *job.others} != set(TOOLS):
            raise ValueError(f"{job.name}: each of {', '.join(TOOLS)} is among its tools or its others")
        found.append(job)
    return found


def find(name: str) -> PeerJob:
    return next(job for job in read() if job.name == name)


def recorded_programs() -> None:
    """Makes tests/tracing/programs importable."""
    sys.path.insert(0, str(PROGRAMS))
