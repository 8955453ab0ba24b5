"""Finds GPUs by name, reads `4xH100` and `2x8xA100`, and puts a job on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import SpecError
from planner.hardware import catalog
from planner.hardware.gpus import GpuRecord
from planner.job.nodes import nearest
from planner.job.size_limits import LONGEST_NAME
from planner.units import show_bytes


def look_up(name: str, *, place: str = "") -> GpuRecord:
    """The GPU that people call so: by its name in the catalog, a scheduler's, or its product's; of several variants of
    one model the usual one (:func:`tell_choice` says which). SpecError with the nearest names if there is none, or if
    the name leaves the model open.
    """
    if (found := catalog.by_name(name)) is not None:
        return found
    meant = _meant(name)
    if len({gpu.model for gpu in meant}) == 1:
        return _usual(meant)
    near = _near(name)
    remedy = f"did you mean `{near[0]}`?" if near else "name one of these, or write its figures"
    if re.search(r"(?i)\bmig\b|\d+g\.\d+gb", name):
        remedy = "a part of a GPU (MIG) is written by its figures; torch.cuda.get_device_properties says them"
    raise SpecError(
        f"there is no GPU `{name[:80]}` in the catalog",
        allowed=", ".join(near or catalog.names()) + "; or {total_bytes: 79.1GiB, arch: sm_90}",
        remedy=remedy,
        place=place,
    )


def are_figures(written: str) -> bool:
    """Whether a text gives a GPU's figures, `{total_bytes: 79.1GiB, arch: sm_90}`, in the place of its name."""
    return written.lstrip().startswith("{")


def tell_choice(name: str) -> str:
    """What :func:`look_up` took a name for, for people; empty where the name leaves nothing open."""
    meant = [] if catalog.by_name(name) is not None else _meant(name)
    if len(meant) < 2 or len({gpu.model for gpu in meant}) > 1:
        return ""
    chosen = _usual(meant)
    others = [gpu for gpu in meant if gpu is not chosen]
    sizes = {round(gpu.total_bytes / chosen.total_bytes, 1) for gpu in others}
    if sizes == {1.0}:
        have = "has" if len(others) == 1 else "have"
        return f"the GPU {name} is taken as {chosen.name}; {_listed(others)} {have} the same memory"
    other = ", ".join(f"{gpu.name} ({show_bytes(gpu.total_bytes)})" for gpu in others)
    return (
        f"the GPU {name} is taken as {chosen.name}, of {show_bytes(chosen.total_bytes)}; say which one it is if it is"
        f" another: {other}"
    )


def _meant(name: str) -> list[GpuRecord]:
    return [] if len(name) > LONGEST_NAME else catalog.by_any_name(name)


def _usual(meant: Sequence[GpuRecord]) -> GpuRecord:
    return next((gpu for gpu in meant if gpu.usual), meant[0])


def _listed(gpus: Sequence[GpuRecord]) -> str:
    return " and ".join(gpu.name for gpu in gpus)


def _near(name: str) -> list[str]:
    """Names that someone may have meant, those of an alias as the variant that is usual."""
    called = [gpu.name for gpu in _meant(name)]
    alike = [_usual(catalog.by_alias(each)).name for each in nearest(name, _aliases(), count=2)]
    return list(dict.fromkeys(called + nearest(name, catalog.names(), count=4) + alike))[:4]


def _aliases() -> list[str]:
    return [each for gpu in catalog.gpus().values() for each in gpu.aliases]


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
    if not are_figures(name):
        look_up(name, place=place)
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
