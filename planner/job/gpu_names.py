"""Finds GPUs by name, and puts a job on one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.errors import SpecError
from planner.hardware import catalog
from planner.hardware.records import GpuRecord
from planner.job.nearest import nearest
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
