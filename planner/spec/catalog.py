"""The GPU catalog: what each GPU gives to CUDA, as data with provenance (`gpus.yaml`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from planner.errors import SpecError
from planner.spec.nearest import did_you_mean, nearest
from planner.spec.nodes import Node
from planner.spec.yaml_text import read_yaml
from planner.units import parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogGpu:
    """One GPU; `total_bytes` is what `torch.cuda.get_device_properties().total_memory` reports.

    `provenance` names who reported the figure, or says "vendor's figure" where nobody did.
    """

    name: str
    total_bytes: int
    arch: str
    provenance: str
    aliases: tuple[str, ...] = ()
    """How schedulers call it: Ray's accelerator type, Slurm's gres type; one alias may name several GPUs."""


@cache
def gpus() -> dict[str, CatalogGpu]:
    """Every GPU of the catalog by its name, in the order of the file."""
    text = resources.files("planner.spec").joinpath("gpus.yaml").read_text(encoding="utf-8")
    entries = read_yaml(text, "gpus.yaml").mapping()
    return {name: _entry(name, node) for name, node in entries.items()}


def names() -> list[str]:
    """The names of the catalog."""
    return list(gpus())


def look_up(name: str, *, place: str = "") -> CatalogGpu:
    """The GPU of that name, in letters of either case; SpecError with the nearest names if there is none."""
    by_folded = {known.casefold(): gpu for known, gpu in gpus().items()}
    if (found := by_folded.get(name.casefold())) is not None:
        return found
    raise SpecError(
        f"there is no GPU `{name[:80]}` in the catalog",
        allowed=", ".join(_near(name) or names()) + "; or {total_bytes: 79.1GiB, arch: sm_90}",
        remedy=did_you_mean(name, names()),
        place=place,
    )


def by_alias(alias: str) -> list[CatalogGpu]:
    """The GPUs that a scheduler may mean by a name such as `H100` or `h100`."""
    return [gpu for gpu in gpus().values() if alias.casefold() in (known.casefold() for known in gpu.aliases)]


def _near(name: str) -> list[str]:
    called = [gpu.name for gpu in by_alias(name)]
    return list(dict.fromkeys(called + nearest(name, names(), count=4)))


def _entry(name: str, node: Node) -> CatalogGpu:
    facts = node.plain()
    return CatalogGpu(
        name=name,
        total_bytes=parse_bytes(facts["total_bytes"]),
        arch=facts["arch"],
        provenance=facts["provenance"],
        aliases=tuple(facts.get("aliases", ())),
    )
