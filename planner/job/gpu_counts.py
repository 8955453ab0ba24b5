"""GPUs as people write them in one word: `4xH100`, `2x8xA100`, `H100:4`, `2x8`, `8`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.errors import SpecError
from planner.hardware import catalog
from planner.job import gpu_names

USUAL_NODE = 8
"""GPUs of the nodes that are sold for training (DGX and HGX boards)."""
_LARGEST = 2**20
_COUNTS_FIRST = re.compile(r"(?:(\d{1,7})\s*[x×*]\s*)?(\d{1,7})\s*[x×*\s]\s*(\S.*)")
_COUNTS_ONLY = re.compile(r"(\d{1,7})\s*[x×*]\s*(\d{1,7})")
_COUNT_LAST = re.compile(r"(.*\S)\s*[:x×*]\s*(\d{1,7})")


@dataclass(frozen=True, slots=True)
class GpuCount:
    """How many GPUs and which; `name` is empty where none is said."""

    nodes: int
    gpus_per_node: int
    name: str
    supposed: str = ""
    """What nobody said, for people."""


def parse(written: str, place: str = "--gpus") -> GpuCount:
    """The GPUs that a word describes. Raises SpecError for one that describes none, and for an unknown GPU."""
    text = written.strip()
    if catalog.by_any_name(text[:100]):  # `4090` is a GPU, and no count
        return GpuCount(1, 1, text)
    if text.isdecimal() and len(text) <= 7:
        return _grouped(int(text), "", written, place)
    if (found := _COUNT_LAST.fullmatch(text)) and catalog.by_any_name(found[1][:100]):
        return _grouped(int(found[2]), found[1], written, place)
    if (found := _COUNTS_ONLY.fullmatch(text)) and not catalog.by_any_name(found[2]):
        return _checked(GpuCount(int(found[1]), int(found[2]), ""), written, place)
    if found := _COUNTS_FIRST.fullmatch(text):
        nodes, count, name = found.groups()
        if nodes is None:
            return _grouped(int(count), _known(name, place), written, place)
        return _checked(GpuCount(int(nodes), int(count), _known(name, place)), written, place)
    counted = re.fullmatch(r"[A-Za-z]+\s*[x×*]\s*(.+)", text)
    if re.match(r"\d+\s*[x×*]|-|$", text) or (counted and catalog.by_any_name(counted[1][:100])):
        raise _unusable(written, place)
    return GpuCount(1, 1, _known(text, place))


def _known(name: str, place: str) -> str:
    if not gpu_names.are_figures(name):
        gpu_names.look_up(name, place=place)
    return name


def _grouped(count: int, name: str, written: str, place: str) -> GpuCount:
    """In nodes of the usual size where there are more than one has."""
    if count <= USUAL_NODE or count % USUAL_NODE:
        return _checked(GpuCount(1, count, name), written, place)
    nodes = count // USUAL_NODE
    said = f"{count} GPUs are {nodes} nodes of {USUAL_NODE} (--gpus {nodes}x{USUAL_NODE}x{name or 'GPU'})"
    return _checked(GpuCount(nodes, USUAL_NODE, name, said), written, place)


def _checked(found: GpuCount, written: str, place: str) -> GpuCount:
    if found.nodes < 1 or found.gpus_per_node < 1 or found.nodes * found.gpus_per_node > _LARGEST:
        raise _unusable(written, place)
    return found


def _unusable(written: str, place: str) -> SpecError:
    return SpecError(
        f"{written[:80]!a} says no number of GPUs",
        allowed=f"4xH100, 2x8xH100 (nodes, GPUs of a node), 2x8, H100, or a number from 1 to {_LARGEST}",
        remedy="write how many GPUs and which",
        place=place,
    )
