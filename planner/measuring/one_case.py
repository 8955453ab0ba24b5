"""One case of the matrix, in a process of its own; whatever it raises, `planner gpu-truth` writes down."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from planner.measuring import operator_conformance, store
from planner.measuring.matrix import Case, cases
from planner.measuring.measure import measure
from planner.measuring.measurement import Measurement
from planner.measuring.operators import Operator, phases_of_steps
from planner.measuring.software import allocator_conf, device_facts, software
from planner.runtime.channel import AnswerWriter


def measure_one(asked: Mapping[str, Any], _: AnswerWriter) -> None:
    """The child's side: measures the case that was asked for; what was measured goes into its file."""
    measure_case(
        asked["name"],
        Path(asked["out"]),
        torch.device(asked["device"]),
        small=asked["small"],
        alone=asked["alone"],
    )


def measure_case(name: str, out: Path, device: torch.device, *, small: bool, alone: bool) -> None:
    """Measures one case and writes its lines into a file of its own, `out`/cases/NAME.jsonl."""
    case = next(each for each in cases(small=small) if each.name == name)
    store.append(out / "cases" / f"{name}.jsonl", _measured(case, out, device, small=small, alone=alone))


def _measured(case: Case, out: Path, device: torch.device, *, small: bool, alone: bool) -> Iterator[Measurement]:
    if case.job is not None:
        yield _step(case, out, device, alone=alone)
    elif case.share is not None:
        extent = operator_conformance.REHEARSAL if small else operator_conformance.WHOLE
        yield from operator_conformance.measure_share(case.share, device, device_facts(device), extent=extent)
        yield replace(_about(case.name, device), operator={"share": list(case.share)})  # says that it is whole
    else:
        yield from _operators(case, device, small=small)


def _step(case: Case, out: Path, device: torch.device, *, alone: bool) -> Measurement:
    assert case.job is not None
    snapshot = out / "snapshots" / f"{case.name}.pickle.xz" if case.snapshot and device.type == "cuda" else None
    return measure(case.job, device, case=case.name, snapshot=snapshot, alone=alone).measurement


def _operators(case: Case, device: torch.device, *, small: bool) -> Iterator[Measurement]:
    about = _about(case.name, device)
    yield replace(about, operator={"family": [entry["name"] for entry in case.operators]})
    for entry in case.operators:
        named = replace(about, case=f"operator-{entry['name']}")
        try:
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch._C._cuda_clearCublasWorkspaces()
            operator = Operator(entry, device, small=small)
            cold = operator.cold()
            steps = operator.run()
        except Exception as error:  # an operator that this torch refuses is an answer too
            yield replace(named, error=f"{type(error).__name__}: {error}".splitlines()[0][:500])
            continue
        yield replace(named, operator={**steps, "first_run": cold}, phases=phases_of_steps(steps))


def _about(name: str, device: torch.device) -> Measurement:
    return Measurement(
        case=name,
        job={},
        device=device_facts(device),
        software=software(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        allocator_conf=allocator_conf(),
    )
