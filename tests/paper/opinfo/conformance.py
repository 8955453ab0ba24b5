"""Runs torch's operator database on the host and on the paper GPU, and says where the two differ.

A process of its own: the database changes torch's global flags when it is imported. It prints JSON, from the operator
to its differences (`Difference`) with an example of each.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice

import planner.paper  # before torch
from planner import cuda_on_paper

# isort: split
import torch

from gpu_truth.operator_samples import Described, OperatorSample, Outcome, dtypes_of, entries, samples_of
from planner.errors import TraceError

WHOLE, SHARE = "whole", "share"
_DTYPES = {
    WHOLE: (torch.float32, torch.bfloat16, torch.complex64, torch.int64),
    SHARE: (torch.float32,),
}
_SEED = 20261122
_FIRST = 8
"""A share is one of so many first samples of each operator."""


class Difference(StrEnum):
    STOPS_ON_VALUES = "stops on values"
    NO_KERNEL = "no kernel"
    REFUSES = "refuses"
    """As torch does on a GPU."""
    SHAPES = "shapes or dtypes"
    STRIDES = "strides"
    NUMBERS = "numbers"
    NO_REFERENCE = "no reference"
    """The host cannot run it."""


def differences(extent: str) -> dict[str, dict[str, str]]:
    """Every difference by operator; both runs begin with the same random state."""
    found: dict[str, dict[str, str]] = {}
    host = torch.device("cpu")
    cuda_on_paper.take_gpu(cuda_on_paper.PaperGpu("H100-SXM-80GB", "sm_90", 80 << 30))
    with planner.paper.gpu("sm_90") as paper:
        for sample in _samples(extent):
            try:
                expected = sample.run(host)
            except Exception as refusal:
                found.setdefault(sample.operator, {})[Difference.NO_REFERENCE] = _line(sample, refusal)
                continue
            difference = _difference(sample, expected, paper.device)
            if difference is not None:
                found.setdefault(sample.operator, {}).setdefault(*difference)
    return found


def _samples(extent: str) -> Iterator[OperatorSample]:
    for entry in entries():
        for dtype in dtypes_of(entry, _DTYPES[extent]):
            if extent == WHOLE:
                yield from samples_of(entry, dtype)
                continue
            some = list(samples_of(entry, dtype, most=_FIRST))
            yield from random.Random(f"{_SEED} {entry.name}").sample(some, min(1, len(some)))


def _difference(sample: OperatorSample, expected: Outcome, device: torch.device) -> tuple[Difference, str] | None:
    try:
        given = sample.run(device)
    except TraceError as refusal:
        return Difference.STOPS_ON_VALUES, _line(sample, refusal)
    except NotImplementedError as refusal:
        return Difference.NO_KERNEL, _line(sample, refusal)
    except RuntimeError as refusal:
        return Difference.REFUSES, _line(sample, refusal)
    if given == expected:
        return None
    text = f"{sample.dtype} sample {sample.number}: {_short(given)} for {_short(expected)}"
    if _without_strides(given) == _without_strides(expected):
        return Difference.STRIDES, text
    if _tensors(given) == _tensors(expected):
        return Difference.NUMBERS, text
    return Difference.SHAPES, text


def _tensors(outcome: Outcome) -> list[Described]:
    return [each for each in (*outcome.results, *outcome.gradients) if isinstance(each, Described)]


def _without_strides(outcome: Outcome) -> list[object]:
    return [
        (each.shape, each.dtype) if isinstance(each, Described) else each
        for each in (*outcome.results, *outcome.gradients)
    ]


def _short(outcome: Outcome) -> str:
    return ", ".join(f"{e.dtype}{e.shape}{e.strides}" for e in islice(_tensors(outcome), 6))


def _line(sample: OperatorSample, error: Exception) -> str:
    return f"{sample.dtype} sample {sample.number}: {type(error).__name__}: {str(error).splitlines()[0][:200]}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    json.dump(differences(sys.argv[1]), sys.stdout, indent=1)
