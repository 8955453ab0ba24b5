"""Messages that people posted when their jobs died, built again from their figures, are explained rightly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from torch_messages import FORMS

from planner.truth.failures.causes import judge
from planner.truth.failures.gpu_messages import find_messages
from planner.truth.failures.messages import Form

POSTED: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[2] / "data" / "out_of_memory_messages.yaml").read_text("utf-8")
)
NAMED = {
    "cached": Form.CACHED, "reserved": Form.RESERVED, "processes": Form.PROCESSES, "expandable": Form.EXPANDABLE,
    "alloc_conf": Form.ALLOC_CONF, "mallocasync": Form.ASYNC, "nccl": Form.NCCL, "library": Form.LIBRARY,
    "driver": Form.DRIVER,
}  # fmt: skip


@pytest.mark.parametrize("posted", POSTED, ids=lambda each: each["source"])
def test_a_posted_message_is_explained_rightly(posted: dict[str, Any]) -> None:
    (failure,) = find_messages(FORMS[posted["form"]](posted["facts"]))
    judged = judge(failure)

    assert (failure.form, judged.cause.value) == (NAMED[posted["form"]], posted["cause"])
    assert len(judged.contradictions) == posted.get("contradictions", 0)
    for name in ("tried", "total", "free", "allocated"):
        if name in posted["facts"]:
            assert getattr(failure, f"{name}_bytes") == in_bytes(posted["facts"][name]), name


def test_every_form_that_torch_has_had_is_among_them() -> None:
    assert {each["form"] for each in POSTED} == set(FORMS)


def in_bytes(written: str) -> int:
    number, unit = written.split()
    return int(float(number) * {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit])
