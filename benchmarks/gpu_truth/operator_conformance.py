"""Every operator of torch's own test database on a device: what each of its samples allocates, forward and backward.

The same is measured on a GPU, on a CPU and on the paper GPU; `gpu_truth.operator_differences` sets them side by
side. An operator is one line of the measurements: its samples with their inputs, so that only equal ones are compared.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gpu_truth.allocation_history import PaperRecorder, history_of
from gpu_truth.operator_samples import Described, OperatorSample, dtypes_of, entries, name_of, samples_of
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement
from planner.truth.measuring.software import software

CASE = "opinfo"
_LOST = "CUDA error"
_PARTS = ("forward", "gradient", "backward")


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of the database: every operator or every n-th, in which dtypes, so many first samples of each."""

    every: int
    dtypes: tuple[torch.dtype, ...]
    samples: int


WHOLE = Extent(1, (torch.float32, torch.bfloat16), 6)
REHEARSAL = Extent(5, (torch.float32,), 1)


def measure_share(
    share: tuple[int, int],
    device: torch.device,
    facts: DeviceFacts,
    *,
    paper: PaperRecorder | None = None,
    extent: Extent = WHOLE,
) -> Iterator[Measurement]:
    """Every n-th operator of the database (`share`: the first, and n). Raises ImportError where torch lacks it."""
    about = Measurement(
        case="",
        job={},
        device=facts,
        software=software(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    first, step = share
    for entry in entries()[first :: step * extent.every]:
        name = name_of(entry)
        try:
            samples = [
                _measure(sample, device, paper)
                for dtype in dtypes_of(entry, extent.dtypes)
                for sample in samples_of(entry, dtype, most=extent.samples)
            ]
        except LostDeviceError as lost:  # nothing runs in this process any more
            yield replace(about, case=f"{CASE}-{name}", error=str(lost))
            return
        yield replace(about, case=f"{CASE}-{name}", operator={"name": name, "samples": samples})


class LostDeviceError(Exception):
    """A kernel has failed, and with it the CUDA context of the process."""


def _measure(sample: OperatorSample, device: torch.device, paper: PaperRecorder | None) -> dict[str, Any]:
    """The second run is recorded: handles and workspaces of a first one are not the operator's."""
    said = {"dtype": sample.dtype, "number": sample.number, "inputs": _inputs(sample)}
    try:
        sample.run(device)
        history = history_of(device, paper)
        with history:
            sample.run(device, history.mark)
            _wait(device, paper)
    except Exception as refusal:  # what a device refuses is an answer too
        if _LOST in str(refusal) and paper is None:
            raise LostDeviceError(f"{sample.dtype} sample {sample.number}: {refusal}"[:300]) from refusal
        return {**said, "error": f"{type(refusal).__name__}: {refusal}".splitlines()[0][:200]}
    steps = history.steps()
    return {**said, **{part: steps[part] for part in _PARTS if part in steps}}


def _inputs(sample: OperatorSample) -> list[list[Any]]:
    tensors = [each for each in pytree.tree_leaves(sample.given) if isinstance(each, torch.Tensor)]
    return [[list(found.shape), found.dtype] for found in map(Described.of, tensors)]


def _wait(device: torch.device, paper: PaperRecorder | None) -> None:
    if device.type == "cuda" and paper is None:
        torch.cuda.synchronize(device)
