"""Operators that allocate otherwise on paper than on a device, by how much that could matter.

Both sides are measurements of torch's operator database (gpu_truth.operator_conformance). Samples are compared
where their inputs are the same; sizes are compared as the allocator would round them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.truth.measuring.measurement_lines import Measurement

_PARTS = ("forward", "gradient", "backward")
_ROUND_BYTES = 512
"""The allocator's smallest block (torch 2.13, c10/core/AllocatorConfig.h, kMinBlockSize)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDifference:
    """The sample of an operator that differs most: requested bytes, allocations (+) and frees (-) in order."""

    operator: str
    dtype: str
    sample: int
    part: str
    device: tuple[int, ...]
    paper: tuple[int, ...]
    bytes: int
    """By how much its peak is off."""
    share: float
    """Of what the sample's inputs and results take: what a sample of another size would be off by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorComparison:
    """`alike` operators allocate the same in all samples; `refused` ran on one side only, with that side's error."""

    alike: tuple[str, ...]
    differences: tuple[OperatorDifference, ...]
    refused: Mapping[str, str]
    not_compared: tuple[str, ...]
    """On one side only, or with other samples."""


def compare_operators(device: Sequence[Measurement], paper: Sequence[Measurement]) -> OperatorComparison:
    """The differences, the largest share first."""
    here, there = _by_name(device), _by_name(paper)
    alike: list[str] = []
    found: list[OperatorDifference] = []
    refused: dict[str, str] = {}
    apart = set(here) ^ set(there)
    for name in sorted(set(here) & set(there)):
        pairs = list(_pairs(here[name], there[name]))
        if not pairs:
            apart.add(name)
            continue
        error = next((trouble for pair in pairs if (trouble := _one_sided_error(*pair))), "")
        if error:
            refused[name] = error
        differing = [each for pair in pairs for each in _differences(name, *pair)]
        if differing:
            found.append(max(differing, key=lambda each: (each.share, each.bytes)))
        elif not error:
            alike.append(name)
    return OperatorComparison(
        alike=tuple(alike),
        differences=tuple(sorted(found, key=lambda each: (-each.share, -each.bytes, each.operator))),
        refused=refused,
        not_compared=tuple(sorted(apart)),
    )


def render(found: OperatorComparison, *, most: int = 40) -> str:
    """The comparison for a terminal."""
    lines = [
        f"{len(found.alike)} operators allocate alike, {len(found.differences)} differ, {len(found.refused)} run on one"
        f" side only, {len(found.not_compared)} were not compared"
    ]
    lines += [
        f"  {each.operator} ({each.dtype}, sample {each.sample}, {each.part}): {each.bytes} B,"
        f" {each.share:.0%} of its tensors; device {_short(each.device)}, paper {_short(each.paper)}"
        for each in found.differences[:most]
    ]
    lines += [f"  {name}: {error}" for name, error in found.refused.items()]
    return "\n".join(lines) + "\n"


def _by_name(measurements: Sequence[Measurement]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The last of each operator: what was measured again stands below."""
    return {each.operator["name"]: each.operator["samples"] for each in measurements if "samples" in each.operator}


def _pairs(
    device: Sequence[Mapping[str, Any]], paper: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    known = {(each["dtype"], each["number"]): each for each in paper}
    for each in device:
        other = known.get((each["dtype"], each["number"]))
        if other is not None and other["inputs"] == each["inputs"]:
            yield each, other


def _one_sided_error(device: Mapping[str, Any], paper: Mapping[str, Any]) -> str:
    if "error" in device and "error" not in paper:
        return f"the device: {device['error']}"
    if "error" in paper and "error" not in device:
        return f"paper: {paper['error']}"
    return ""


def _differences(name: str, device: Mapping[str, Any], paper: Mapping[str, Any]) -> Iterator[OperatorDifference]:
    if "error" in device or "error" in paper:
        return
    whole = max(_tensor_bytes(device), _ROUND_BYTES)
    for part in _PARTS:
        here, there = _rounded(device.get(part, ())), _rounded(paper.get(part, ()))
        if here == there:
            continue
        off = abs(_peak(here) - _peak(there))
        yield OperatorDifference(
            operator=name, dtype=device["dtype"], sample=device["number"], part=part,
            device=here, paper=there, bytes=off, share=off / whole,
        )  # fmt: skip


def _tensor_bytes(sample: Mapping[str, Any]) -> int:
    """All that was allocated: results and what was needed for them."""
    return sum(size for part in _PARTS for size in _rounded(sample.get(part, ())) if size > 0)


def _rounded(sizes: Sequence[int]) -> tuple[int, ...]:
    """As blocks; what takes none is left out, since a CPU's profiler does not report it."""
    return tuple(-_block(-each) if each < 0 else _block(each) for each in sizes if each)


def _block(size: int) -> int:
    return -(-size // _ROUND_BYTES) * _ROUND_BYTES


def _peak(sizes: Sequence[int]) -> int:
    now = highest = 0
    for each in sizes:
        now += each
        highest = max(highest, now)
    return highest


def _short(sizes: Sequence[int]) -> str:
    shown = " ".join(f"{each:+}" for each in sizes[:8])
    return f"[{shown}{' ...' if len(sizes) > 8 else ''}]"
