"""The operator database on the paper GPU, by the instrument that measures it on a real one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner import paper  # before torch

# isort: split
from planner.measuring import operator_conformance, store
from planner.measuring.gpu_truth import PAPER
from planner.measuring.matrix import cases
from planner.measuring.measurement import DeviceFacts
from planner.runtime.channel import AnswerWriter

_USUAL_ARCH = "sm_90"


def measure_one(asked: Mapping[str, Any], _: AnswerWriter) -> None:
    """The child's side of one share of the database; the device is `paper:sm_90`, say."""
    case = next(each for each in cases() if each.name == asked["name"])
    arch = asked["device"].partition(":")[2] or _USUAL_ARCH
    assert case.share is not None
    with paper.gpu(arch) as gpu:
        facts = DeviceFacts(kind=PAPER, name=PAPER, arch=arch)
        extent = operator_conformance.REHEARSAL if asked["small"] else operator_conformance.WHOLE
        found = list(
            operator_conformance.measure_share(case.share, gpu.device, facts, paper=gpu.recorder, extent=extent)
        )
    whole = replace(found[-1], case=case.name, operator={"share": list(case.share)})
    store.append(Path(asked["out"]) / "cases" / f"{case.name}.jsonl", [*found, whole])
