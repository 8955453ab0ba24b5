"""Runs torch's operator database on inputs that the paper GPU knows, and says what it takes their results for.

A process of its own, as `conformance`. It prints JSON: the operators whose results are other ones than the host's, each
with an example, and how many operators' results are known and how many are not.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import planner.paper  # before torch
from planner import cuda_on_paper

# isort: split
import torch
from conformance import WHOLE
from torch.utils import _pytree as pytree

from gpu_truth.operator_samples import OperatorSample, dtypes_of, entries, samples_of
from planner.errors import TraceError
from planner.paper import values

_DTYPES = (torch.int64, torch.float32, torch.bool)
_FIRST = 2
"""Samples of each operator and dtype in a share."""
_DRAWN = ("randint_like",)
"""Whole numbers as CUDA's generator draws them from the seed, which are not the host's."""
_MOST_APART = 1e-3
"""Of results in float32, whose sums the host may add in another order by where they lie."""


def compare(extent: str) -> dict[str, Any]:
    """The wrong ones by operator, and the numbers of those that are known, partly known and unknown."""
    wrong: dict[str, str] = {}
    known: dict[str, Counter[bool]] = {}
    cuda_on_paper.take_gpu(cuda_on_paper.PaperGpu("H100-SXM-80GB", "sm_90", 80 << 30))
    with planner.paper.gpu("sm_90") as paper:
        for name, sample in _samples(extent):
            for expected, given in _run_on_both(sample, paper.device):
                found = values.known_value(given)
                known.setdefault(name, Counter())[found is not None] += 1
                if found is not None and not _agree(expected, found):
                    wrong.setdefault(name, f"{sample.dtype} sample {sample.number}: {found} for {expected}"[:300])
    return {
        "wrong": wrong,
        "known": sorted(name for name, counted in known.items() if not counted[False]),
        "partly": sorted(name for name, counted in known.items() if len(counted) == 2),
        "unknown": sorted(name for name, counted in known.items() if not counted[True]),
    }


def _samples(extent: str) -> Iterator[tuple[str, OperatorSample]]:
    for entry in (entry for entry in entries() if entry.name not in _DRAWN):
        for dtype in dtypes_of(entry, _DTYPES):
            try:
                samples = list(islice(samples_of(entry, dtype), None if extent == WHOLE else _FIRST))
            except Exception:  # the database has no such samples on a host
                continue
            for sample in samples:
                yield sample.operator, sample
                if entry.inplace_variant is not None:
                    yield f"{sample.operator} in place", replace(sample, call=entry.inplace_variant)


def _run_on_both(sample: OperatorSample, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Every result and every input of the call as it is afterwards, on the host and on the device; none where one of
    them refuses it, or where numbers are drawn."""
    host = torch.device("cpu")
    try:
        with torch.no_grad():
            expected, again, given = (_results(sample, *run) for run in ((host, 0), (host, 1), (device, 0)))
    except (TraceError, RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return
    if not all(map(_agree, expected, again)):
        return
    for one, other in zip(expected, given, strict=False):
        if other.is_cuda and other.layout is torch.strided and one.shape == other.shape and one.dtype == other.dtype:
            yield one, other


def _results(sample: OperatorSample, device: torch.device, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    given, arguments, named = sample._given_on(device)
    result = sample.call(given, *arguments, **named)
    return [each for each in pytree.tree_leaves((result, given, arguments, named)) if isinstance(each, torch.Tensor)]


def _agree(expected: torch.Tensor, found: torch.Tensor) -> bool:
    if not expected.is_cpu or expected.layout is not torch.strided or expected.shape != found.shape:
        return False
    if not expected.is_floating_point() and not expected.is_complex():
        return torch.equal(expected, found)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    return torch.allclose(expected.to(wide), found.to(wide), rtol=_MOST_APART, atol=_MOST_APART, equal_nan=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    json.dump(compare(sys.argv[1]), sys.stdout, indent=1)
