"""One case of the matrix, in a process of its own; whatever it raises, the campaign writes down."""

from __future__ import annotations

import datetime
import lzma
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gpu_truth import operator_conformance
from gpu_truth.matrix import Case, cases
from gpu_truth.probes import PROBES
from planner.errors import MeasureError
from planner.runtime.messages import AnswerWriter
from planner.truth.measuring import measurement_lines, program
from planner.truth.measuring.measure import make_setting, measure
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement
from planner.truth.measuring.program import World
from planner.truth.measuring.software import allocator_conf, device_facts, software

_REPOSITORY = Path(__file__).parents[2]
"""Where examples/programs lies, in a checkout."""


def measure_one(asked: Mapping[str, Any], _: AnswerWriter) -> None:
    """The child's side: measures the case that was asked for; its lines go into `out`/NAME.jsonl."""
    case = next(each for each in cases(small=asked["small"]) if each.name == asked["name"])
    out, device = Path(asked["out"]), torch.device(asked["device"])
    measurement_lines.append(out / f"{case.name}.jsonl", _measured(case, asked, out, device))


def _measured(case: Case, asked: Mapping[str, Any], out: Path, device: torch.device) -> Iterator[Measurement]:
    history = out / f"{case.name}.pickle.xz" if case.snapshot and device.type == "cuda" else None
    if case.job is not None:
        setting = make_setting(case.job, asked["device"], is_alone=asked["alone"])
        yield replace(measure(case.job, setting, snapshot=history), case=case.name)
    elif case.share is not None:
        extent = operator_conformance.REHEARSAL if asked["small"] else operator_conformance.WHOLE
        lost = ""
        for line in operator_conformance.measure_share(case.share, device, device_facts(device), extent=extent):
            lost = f"{line.case}: {line.error}" if line.error else ""
            yield line
        if lost:  # what comes after it in this share was not asked
            raise MeasureError(f"the device was lost in {lost}")
        yield replace(_about_device(case.name, device), operator={"share": list(case.share)})  # says that it is whole
    elif case.probe:
        yield _probe(case, device, history)
    else:
        yield _program(case, out, device)


def _probe(case: Case, device: torch.device, history: Path | None) -> Measurement:
    with _recorded_history(history):
        found = PROBES[case.probe](device)
    return replace(_about_device(case.name, device), operator={"probe": case.probe, **found})


def _program(case: Case, out: Path, device: torch.device) -> Measurement:
    """The program as `planner measure -- python ...` runs it. Raises MeasureError if it ends with an error."""
    script = _REPOSITORY / case.program[0]
    if case.program[0].endswith(".py") and not script.exists():
        raise MeasureError(f"{case.program[0]} is not here", allowed="a checkout of the repository")
    arguments = [str(script), *case.program[1:]] if script.exists() else list(case.program)
    ended = program.measure_program([sys.executable, *arguments], World(size=1), out)
    if ended.exit_code:
        raise MeasureError(f"the program ended with exit code {ended.exit_code}")
    (found,) = ended.measurements
    if found.error and device.type == "cuda":
        raise MeasureError(found.error)
    known = {"program": list(case.program), "without_figures": found.error}  # as in every rehearsal
    return replace(found, case=case.name, command=("python", *case.program), operator=known, error="")


@contextmanager
def _recorded_history(path: Path | None) -> Iterator[None]:
    """Inside, the allocator's history is recorded, without stacks; without a path nothing is."""
    if path is None:
        yield
        return
    torch.cuda.memory._record_memory_history(context=None, stacks="python")
    try:
        yield
    finally:
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        path.write_bytes(lzma.compress(pickle.dumps(snapshot, protocol=4)))


def _about_device(name: str, device: torch.device) -> Measurement:
    return about(name, device_facts(device))


def about(name: str, device: DeviceFacts) -> Measurement:
    """A line of this name that says nothing but where and when."""
    return Measurement(
        case=name,
        job={},
        device=device,
        software=software(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        allocator_conf=allocator_conf(),
    )
