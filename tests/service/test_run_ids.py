"""The run of a program is named by everything that decides its answer, and by nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.job.launching.line import parse
from planner.job.schema import Gpu
from planner.planning import identity
from planner.service.orders import RunRequest, build_run_order
from planner.service.torch_versions import OfferedTorch, TorchVersions
from planner.settings import Settings
from planner.truth.calibration.interval import Calibration

COMMAND = ("python", "train.py")
REQUEST = RunRequest(
    line=parse(COMMAND), command=COMMAND, gpu=Gpu(name="", total_bytes=1 << 30, arch="sm_80"), ranks="auto", steps=0,
    strict=False, metadata={"team": "nlp"}, tarball=b"files",
)  # fmt: skip
SETTINGS = Settings()


def id_of(request: RunRequest = REQUEST, settings: Settings = SETTINGS) -> str:
    return build_run_order(request, Calibration.none(), settings).plan_id


@pytest.mark.parametrize(
    "changed",
    [
        {"command": ("python", "train.py", "--layers", "2")},
        {"gpu": Gpu(name="", total_bytes=1 << 31, arch="sm_80")},
        {"ranks": "all"},
        {"steps": 3},
        {"strict": True},
        {"host_memory_bytes": 1 << 30},
        {"torch": "2.6"},
        {"tarball": b"other files"},
        {"tarball": b"", "folder": "/shared/nlp"},
    ],
    ids=lambda changed: ", ".join(changed),
)
def test_another_request_is_another_run(changed: dict[str, Any]) -> None:
    assert id_of(replace(REQUEST, **changed)) != id_of()


@pytest.mark.parametrize(
    "changed", [{"program_seconds": 7.0}, {"trace_memory_bytes": 1 << 30}, {"program_data": "/shared/data"}]
)
def test_other_limits_and_other_data_are_another_run(changed: dict[str, Any]) -> None:
    assert id_of(settings=replace(SETTINGS, **changed)) != id_of()


def test_another_torch_that_runs_it_is_another_run() -> None:
    offered = TorchVersions((OfferedTorch("2.6", "/nowhere/python", {**identity.every_version(), "torch": "2.6.0"}),))
    asked = replace(REQUEST, torch="2.6")

    assert build_run_order(asked, Calibration.none(), SETTINGS, offered).plan_id != id_of(asked)
    assert build_run_order(REQUEST, Calibration.none(), SETTINGS, offered).plan_id == id_of()


def test_other_answers_are_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = id_of()
    monkeypatch.setattr(identity, "ANSWERS", identity.ANSWERS + 1)

    assert id_of() != before


def test_who_asks_is_no_part_of_a_run() -> None:
    assert id_of(replace(REQUEST, metadata={"team": "vision"})) == id_of()
