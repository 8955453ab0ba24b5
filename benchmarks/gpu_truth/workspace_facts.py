"""Workspaces that a device took, read off its allocations beside those of the same operator on paper.

On paper every place is known at which a closed library asks for scratch memory, with all that the library hears. What a
device has allocated there and nowhere else is the workspace. Where the rest of the two sequences is not the same,
nothing is concluded: such an operator stands among the differences instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.hardware.workspaces import WorkspaceFact, WorkspaceRequest
from planner.truth.measuring.measurement_lines import Measurement

_PARTS = ("forward", "gradient", "backward")
_BLOCK = 512
"""As the allocator rounds (torch 2.13, c10/core/AllocatorConfig.h, kMinBlockSize)."""
_MOST_STEPS = 400
"""Longer sequences are left out: those of single operators have some ten steps."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request at a place of the sequence on paper: before its step `index`; `taken`: what paper took there."""

    index: int
    taken: int
    request: WorkspaceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFacts:
    """`unexplained` are operators with workspaces whose sequences differ otherwise, by name."""

    facts: tuple[WorkspaceFact, ...]
    unexplained: tuple[str, ...]


def find_facts(device: Sequence[Measurement], paper: Sequence[Measurement], *, gpu: str, command: str) -> FoundFacts:
    """The workspaces of all operators that stand on both sides; `gpu` is the catalog's name of the device."""
    there = {each.case: each for each in paper if "workspaces" in each.operator or "first_run" in each.operator}
    found: dict[WorkspaceRequest, WorkspaceFact] = {}
    unexplained: list[str] = []
    for each in device:
        other = there.get(each.case)
        if other is None or each.error or other.error or not _has_requests(other.operator):
            continue
        later = _workspaces(each.operator, other.operator)
        first = _workspaces(each.operator.get("first_run", {}), other.operator.get("first_run", {}))
        if later is None or first is None:
            unexplained.append(each.case)
            continue
        for request, size in later.items():
            found[request] = WorkspaceFact(
                request=request,
                bytes=size,
                first_bytes=first.get(request, size),
                gpu=gpu,
                torch=each.software.get("torch", ""),
                driver=each.software.get("driver", ""),
                date=each.date,
                command=command,
                software={name: each.software[name] for name in ("cuda", "cudnn") if name in each.software},
            )
    return FoundFacts(facts=tuple(found.values()), unexplained=tuple(unexplained))


def _has_requests(operator: Mapping[str, Any]) -> bool:
    return bool(operator.get("workspaces")) or bool(operator.get("first_run", {}).get("workspaces"))


def _workspaces(device: Mapping[str, Any], paper: Mapping[str, Any]) -> dict[WorkspaceRequest, int] | None:
    """Bytes of every request of one run; None where the sequences differ in anything else."""
    here, there, asked = _joined(device), _joined(paper), list(_requests(paper))
    if len(here) > _MOST_STEPS or len(there) > _MOST_STEPS:
        return None
    sizes = _align(here, there, asked)
    if sizes is None:
        return None
    found: dict[WorkspaceRequest, int] = {}
    for each, size in zip(asked, sizes, strict=True):
        found[each.request] = max(size, found.get(each.request, 0))
    return found


def _joined(operator: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(size for part in _PARTS for size in operator.get(part, ()))


def _requests(operator: Mapping[str, Any]) -> Iterator[Asked]:
    begins, at = {}, 0
    for part in _PARTS:
        begins[part], at = at, at + len(operator.get(part, ()))
    for each in operator.get("workspaces", ()):
        if each["part"] not in begins:
            continue
        request = WorkspaceRequest(
            kernel=each["kernel"],
            dtype=each["dtype"],
            shapes=tuple(tuple(shape) for shape in each["shapes"]),
            options=each["options"],
        )
        yield Asked(begins[each["part"]] + each["index"], each["taken"], request)


def _align(here: Sequence[int], there: Sequence[int], asked: Sequence[Asked]) -> list[int] | None:
    """For each request what the device allocated, such that all the other steps are the same blocks in one order.

    A request is met by an allocation that paper has not (or has in another size, where it took an estimate), and its
    free anywhere later; or by nothing. Of several ways the one in which the first requests take something: a library
    that asks for nothing is rarer than two equal blocks.
    """
    sizes: list[int] = []

    def walk(i: int, j: int, k: int, owed: tuple[int, ...], extra: tuple[int, ...]) -> bool:
        """From step i of the device and j of paper, with k requests met: `owed` frees of estimates paper has yet to
        say, `extra` frees of workspaces the device has yet to say."""
        if k < len(asked) and asked[k].index == j:
            return meet(i, j, k, owed, extra)
        if j < len(there) and there[j] < 0 and -there[j] in owed:
            rest = _without(owed, -there[j])
            if walk(i, j + 1, k, rest, extra):
                return True
        if (
            i < len(here)
            and j < len(there)
            and _block(here[i]) == _block(there[j])
            and walk(i + 1, j + 1, k, owed, extra)
        ):
            return True
        if i < len(here) and here[i] < 0 and -here[i] in extra:
            return walk(i + 1, j, k, owed, _without(extra, -here[i]))
        return i == len(here) and j == len(there) and k == len(asked)

    def meet(i: int, j: int, k: int, owed: tuple[int, ...], extra: tuple[int, ...]) -> bool:
        taken = asked[k].taken
        skip = 1 if taken else 0  # paper's own allocation for it stands at j
        mine = (*owed, taken) if taken else owed
        if i < len(here) and here[i] > 0:
            sizes.append(here[i])
            if walk(i + 1, j + skip, k + 1, mine, (*extra, here[i])):
                return True
            sizes.pop()
        sizes.append(0)
        if walk(i, j + skip, k + 1, mine, extra):
            return True
        sizes.pop()
        return False

    return sizes if walk(0, 0, 0, (), ()) else None


def _without(sizes: tuple[int, ...], size: int) -> tuple[int, ...]:
    place = sizes.index(size)
    return sizes[:place] + sizes[place + 1 :]


def _block(size: int) -> int:
    return -(-abs(size) // _BLOCK) * _BLOCK * (1 if size > 0 else -1)
