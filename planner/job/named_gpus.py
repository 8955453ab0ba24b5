"""Finds GPUs by name, reads `4xH100` and `2x8xA100`, and puts a job on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import SpecError
from planner.hardware import catalog
from planner.hardware.gpu_records import GpuRecord
from planner.hardware.mig import profile_in, without_profile
from planner.job.nodes import nearest
from planner.job.size_limits import LONGEST_NAME, MOST_RANKS
from planner.units import show_bytes


def look_up(name: str, *, place: str = "") -> GpuRecord:
    """The GPU that people call so: by its name in the catalog, a scheduler's, or its product's; of several variants of
    one model the usual one (:func:`tell_choice` says which). SpecError with the nearest names if there is none, or if
    the name leaves the model open.
    """
    if (record := catalog.by_name(name)) is not None:
        return record
    meant = _meant(name)
    if len({gpu.model for gpu in meant}) == 1:
        return _usual(meant)
    aliases = [alias for gpu in catalog.gpus().values() for alias in gpu.aliases]
    alike = [_usual(catalog.by_alias(alias)).name for alias in nearest(name, aliases, count=2)]
    near = list(dict.fromkeys([gpu.name for gpu in meant] + nearest(name, catalog.names(), count=4) + alike))[:4]
    remedy = f"did you mean `{near[0]}`?" if near else "name one of these, or write its figures"
    if profile := profile_in(name):
        whole = catalog.by_any_name(without_profile(name)[:LONGEST_NAME])
        parts = [part.name for gpu in whole for part in catalog.slices().get(gpu.name, ())]
        near = near if meant else parts[:8]
        remedy = (
            f"name the GPU that {profile} is a slice of, as in H100-SXM-80GB:1g.10gb"
            if not parts
            else (f"{whole[0].name} has no slice {profile}")
        )
    raise SpecError(
        f"there is no GPU `{name[:80]}` in the catalog",
        allowed=", ".join(near or catalog.names()) + "; or {total_bytes: 79.1GiB, arch: sm_90}",
        remedy=remedy,
        place=place,
    )


def refuse_ranks_on_slice(name: str, ranks: int, place: str) -> None:
    """Raises SpecError for several ranks on MIG slices."""
    gpu = catalog.by_name(name) if name else None
    if gpu is not None and gpu.slice and ranks > 1:
        raise SpecError(
            f"the job has {ranks} ranks, and {gpu.name} is a MIG slice: NCCL does not join the ranks of slices",
            allowed="one rank; MIG has no peer-to-peer copies (NVIDIA's MIG user guide), and NCCL knows slices only"
            " since 2.32, as an experiment (NVIDIA/nccl#1716)",
            remedy=f"plan it on whole GPUs ({gpu.whole}), or with one rank",
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
        names = " and ".join(gpu.name for gpu in others)
        return f"the GPU {name} is taken as {chosen.name}; {names} {have} the same memory"
    other = ", ".join(f"{gpu.name} ({show_bytes(gpu.total_bytes)})" for gpu in others)
    return (
        f"the GPU {name} is taken as {chosen.name}, of {show_bytes(chosen.total_bytes)}; say which one it is if it is"
        f" another: {other}"
    )


def _meant(name: str) -> list[GpuRecord]:
    return [] if len(name) > LONGEST_NAME else catalog.by_any_name(name)


def _usual(meant: Sequence[GpuRecord]) -> GpuRecord:
    return next((gpu for gpu in meant if gpu.usual), meant[0])


USUAL_NODE = 8
"""GPUs of the nodes that are sold for training (DGX and HGX boards)."""
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
    count = _count(written.strip(), place)
    if count is None or not (count.nodes > 0 and 0 < count.gpus_per_node <= MOST_RANKS // count.nodes):
        raise SpecError(
            f"{written[:80]!a} says no number of GPUs",
            allowed=f"4xH100, 2x8xH100 (nodes, GPUs of a node), 2x8, H100, or a number from 1 to {MOST_RANKS}",
            remedy="write how many GPUs and which",
            place=place,
        )
    return count


def _count(text: str, place: str) -> GpuCount | None:
    """None for a text that says no number, and nothing else."""
    if catalog.by_any_name(text[:100]):  # `4090` is a GPU, and no count
        return GpuCount(1, 1, text)
    if text.isdecimal() and len(text) <= 7:
        return _grouped(int(text), "")
    if (match := _COUNT_LAST.fullmatch(text)) and catalog.by_any_name(match[1][:100]):
        return _grouped(int(match[2]), match[1])
    if (match := _COUNTS_ONLY.fullmatch(text)) and not catalog.by_any_name(match[2]):
        return GpuCount(int(match[1]), int(match[2]), "")
    if match := _COUNTS_FIRST.fullmatch(text):
        nodes, count, name = match.groups()
        _check_known(name, place)
        return _grouped(int(count), name) if nodes is None else GpuCount(int(nodes), int(count), name)
    counted = re.fullmatch(r"[A-Za-z]+\s*[x×*]\s*(.+)", text)
    if re.match(r"\d+\s*[x×*]|-|$", text) or (counted and catalog.by_any_name(counted[1][:100])):
        return None
    _check_known(text, place)
    return GpuCount(1, 1, text)


def _check_known(name: str, place: str) -> None:
    if not are_figures(name):
        look_up(name, place=place)


def _grouped(count: int, name: str) -> GpuCount:
    """In nodes of the usual size where there are more than one has."""
    if count <= USUAL_NODE or count % USUAL_NODE:
        return GpuCount(1, count, name)
    nodes = count // USUAL_NODE
    sentence = f"{count} GPUs are {nodes} nodes of {USUAL_NODE} (--gpus {nodes}x{USUAL_NODE}x{name or 'GPU'})"
    return GpuCount(nodes, USUAL_NODE, name, sentence)
