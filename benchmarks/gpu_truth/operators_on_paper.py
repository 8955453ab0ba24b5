"""torch's operator database on the paper GPU, by the instrument that measures them on a real one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner import paper  # before torch

# isort: split

from gpu_truth import operator_conformance
from gpu_truth.campaign import PAPER
from gpu_truth.matrix import Case, cases
from gpu_truth.one_case import about
from planner.paper.device import Paper
from planner.runtime.messages import AnswerWriter
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement

_USUAL_ARCH = "sm_90"


def measure_one(asked: Mapping[str, Any], _: AnswerWriter) -> None:
    """The child's side of one share of the database; the device is `paper:sm_90`, say."""
    case = next(each for each in cases(small=asked["small"]) if each.name == asked["name"])
    arch = asked["device"].partition(":")[2] or _USUAL_ARCH
    with paper.gpu(arch) as gpu:
        facts = DeviceFacts(kind=PAPER, name=PAPER, arch=arch)
        lines = _share(case, gpu, facts, small=asked["small"])
        measurement_lines.append(Path(asked["out"]) / f"{case.name}.jsonl", lines)


def _share(case: Case, gpu: Paper, facts: DeviceFacts, *, small: bool = False) -> Iterator[Measurement]:
    assert case.share is not None
    extent = operator_conformance.REHEARSAL if small else operator_conformance.WHOLE
    yield from operator_conformance.measure_share(case.share, gpu.device, facts, paper=gpu.recorder, extent=extent)
    yield replace(about(case.name, facts), operator={"share": list(case.share)})
