"""From measurements to facts: steps of a device beside those of paper become observations in a folder of facts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.calibration.coverage import Coverage, cover_left_out
from planner.calibration.document import observation_from_json, observation_to_json
from planner.calibration.observation import Observation, make_observation
from planner.errors import FactsError
from planner.facts import workspaces
from planner.facts.folder import OBSERVATIONS, WORKSPACES, read_lines, state_of
from planner.facts.versions import minor_of
from planner.facts.workspaces import WorkspaceFact
from planner.hardware import catalog
from planner.job.schema import Software
from planner.measuring.measurement import Measurement
from planner.overhead.estimate import outside
from planner.planning.step_on_paper import gpu_of

_OF_THE_STEP = ("model", "train", "parallel", "allocator")
"""Sections of a bundle: GPU and software are told by the measurement itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntFacts:
    """What was written: `unexplained` operators taught nothing, `coverage` is of the group's observations."""

    gpu: str
    torch: str
    workspaces: int
    observations: int
    unexplained: tuple[str, ...]
    coverage: Coverage

    def describe(self) -> str:
        """For a terminal."""
        covered = self.coverage
        lines = [
            f"{self.gpu} with torch {self.torch}: {self.workspaces} workspaces and {self.observations} observed steps",
            f"left out one by one, {covered.covered} of {covered.observations} steps lie in the interval of the others",
            *(f"  outside: {case}" for case in covered.outside),
            *(f"  taught nothing, its sequence differs: {case}" for case in self.unexplained),
        ]
        return "\n".join(lines) + "\n"


def learn_facts(
    device: Sequence[Measurement],
    paper: Sequence[Measurement],
    folder: Path,
    *,
    measured: Sequence[WorkspaceFact] = (),
    unexplained: tuple[str, ...] = (),
) -> LearntFacts:
    """Writes what is to be learnt into the folder, beside what other GPUs and versions taught.

    `measured` are workspaces of single operators, where such were asked. A request or a step that was measured before
    gives way. Raises FactsError where the two are not of one torch, or the device is no GPU of the catalog.
    """
    gpu, torch = group_of(device, paper)
    observed = list(_observations(device, paper, gpu))
    suffix = f"{gpu}-torch-{torch}.jsonl"
    known = {each.request: each for each in _known_workspaces(folder, suffix)}
    known |= {each.request: each for each in measured}
    steps = {each.case: each for each in _known_observations(folder, suffix)} | {each.case: each for each in observed}
    _write(folder / f"{WORKSPACES}-{suffix}", (workspaces.to_json(each) for each in known.values()))
    _write(folder / f"{OBSERVATIONS}-{suffix}", (observation_to_json(each) for each in steps.values()))
    return LearntFacts(
        gpu=gpu,
        torch=torch,
        workspaces=len(known),
        observations=len(steps),
        unexplained=unexplained,
        coverage=cover_left_out(list(steps.values())),
    )


def group_of(device: Sequence[Measurement], paper: Sequence[Measurement]) -> tuple[str, str]:
    """The GPU by the catalog's name, and torch's major and minor version. Raises FactsError as `learn_facts`."""
    names = {each.device.name for each in device if each.device.kind == "cuda"}
    if len(names) != 1 or len(records := catalog.by_any_name(names.copy().pop())) != 1:
        raise FactsError(
            f"the measurements are of {', '.join(sorted(names)) or 'no GPU'}",
            allowed="measurements of one GPU that the catalog knows",
            remedy="add a record to planner/hardware/gpus.py, or measure each GPU into a folder of its own",
        )
    versions = {minor_of(each.software["torch"]) for each in (*device, *paper) if "torch" in each.software}
    if len(versions) != 1:
        raise FactsError(
            f"the measurements and their counterparts on paper are of torch {' and '.join(sorted(versions))}",
            allowed="one version: kernels change with it",
            remedy="make the counterparts with the torch of the device",
        )
    return records[0].name, versions.pop()


def _observations(device: Sequence[Measurement], paper: Sequence[Measurement], gpu: str) -> Iterable[Observation]:
    there = {each.case: each for each in paper if each.phases and each.job and not each.error}
    for each in device:
        other = there.get(each.case)
        if other is None or each.device.kind != "cuda" or not each.phases or each.error:
            continue
        if any(each.job.get(section) != other.job.get(section) for section in _OF_THE_STEP):
            continue  # on paper it was another size
        software = Software(torch=each.software.get("torch", ""), cuda=each.software.get("cuda", ""))
        yield make_observation(
            gpu=gpu,
            torch=software.torch,
            cuda=software.cuda,
            world_size=each.world_size,
            case=each.case,
            reserved_bytes=(other.peak.reserved_bytes, each.peak.reserved_bytes),
            predicted_context_bytes=outside(gpu_of(each.device), software, ()).cuda_context_bytes,
            device_bytes=max((phase.device_bytes for phase in each.phases), default=0),
            device_bytes_by=each.device_bytes_by,
            device_total_bytes=each.device.total_bytes,
            peers=each.peers,
            measured_out_of_memory=each.out_of_memory is not None,
            date=each.date,
        )


def _known_workspaces(folder: Path, suffix: str) -> list[WorkspaceFact]:
    return [workspaces.from_json(document, place) for place, document in _lines(folder, WORKSPACES, suffix)]


def _known_observations(folder: Path, suffix: str) -> list[Observation]:
    return [observation_from_json(document, place) for place, document in _lines(folder, OBSERVATIONS, suffix)]


def _lines(folder: Path, kind: str, suffix: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return read_lines(tuple(each for each in state_of(folder, kind) if each[0].name == f"{kind}-{suffix}"))


def _write(path: Path, documents: Iterable[Mapping[str, Any]]) -> None:
    lines = [f"{json.dumps(each, separators=(',', ':'))}\n" for each in documents]
    if lines:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")
