"""One thing inside another package that planner relies on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any


class Kind(StrEnum):
    """How planner relies on a target."""

    PATCH = "patch"
    """Replaced while a context manager is open."""
    WRAPPED = "wrapped"
    """Wrapped for good in another process, which may not have planner: no group of patches can be applied there."""
    OVERRIDE = "override"
    """A method, not documented for it, that a subclass of planner's overrides."""
    PRIVATE = "private"
    """A private name that is called or read."""
    MIRROR = "mirror"
    """A number or a rule, written down again in planner because nothing in the package can be asked for it."""


class Change(StrEnum):
    """What follows if the target is not the one that planner was written for."""

    REFUSED = "refused"
    """Plans could be wrong without a sign of it: nothing is planned."""
    REPORTED = "reported"
    """Plans name something less, or take longer: planning goes on after a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A target with the reason why planner needs it."""

    target: str
    """`package.module:Name.inside.it`."""
    kind: Kind
    why: str
    test: str
    """The file that fails without it, from the root of the repository."""
    group: str = ""
    """Patches of one group are applied together."""
    change: Change = Change.REFUSED
    has_source: bool = True
    """Whether its Python source is compared; else only that the target is there."""
    optional: bool = False
    """Some of the known versions do not have it."""
    part: str = ""
    """What of planner needs it (`compiling`, `deepspeed`); empty: every plan. It is looked at when that is reached."""

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def name(self) -> str:
        """The qualified name inside the module."""
        return self.target.partition(":")[2]

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


def entries(kind: Kind, test: str, *, targets: Mapping[str, str], **shared: Any) -> tuple[Entry, ...]:
    """Entries that share everything but their targets and reasons.

    `targets`: by targets the reason, as `torch.cuda:Stream Event torch:save`: names after a module are in that module.
    """
    return tuple(
        Entry(target=target, kind=kind, why=why, test=test, **shared)
        for names, why in targets.items()
        for target in _split_targets(names)
    )


def _split_targets(names: str) -> Iterator[str]:
    module = ""
    for word in names.split():
        before, _, name = word.rpartition(":")
        module = before or module
        yield f"{module}:{name}"


def patch(group: str, test: str, **shared: Any) -> tuple[Entry, ...]:
    """Entries of patches that are applied together."""
    return entries(Kind.PATCH, test, group=group, **shared)


wrapped = partial(entries, Kind.WRAPPED)
override = partial(entries, Kind.OVERRIDE)
private = partial(entries, Kind.PRIVATE)
mirror = partial(entries, Kind.MIRROR)
