"""Learns a calibration from observations or from the folder of facts, and tests whether its intervals hold."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from planner.hardware.facts import OBSERVATIONS, FolderState, facts_folder, read_lines, state_of
from planner.truth.calibration.correction import Correction, Estimate, estimate
from planner.truth.calibration.interval import Calibration, digest, observation_from_json, reserved_band
from planner.truth.calibration.observation import (
    MOST_OUTSIDE_RATIO,
    OUTLIER_OUTSIDE,
    OUTLIER_RESERVED,
    Observation,
    QuarantinedObservation,
    fault_of,
    outliers,
    ratio_fault,
)

_Group = tuple[str, str]
_Residual = Callable[[Observation], float | None]
"""Relative to predicted; None where it was not measured."""


def learn(observations: Iterable[Observation], prior: Calibration | None = None) -> Calibration:
    """The calibration that observations teach, in any order; `prior` (default: none) is what they are shrunk towards.

    Hand in all observations there are, every time: they replace the prior's correction of their GPU and torch, and
    equal ones count once. What the prior knows of other groups is kept.
    """
    start = Calibration.none() if prior is None else prior
    before = {(each.gpu, each.torch): each for each in start.corrections}
    quarantined = set(start.quarantined)
    groups: dict[_Group, list[Observation]] = defaultdict(list)
    for seen in sorted(set(observations), key=repr):
        fault = fault_of(seen)
        if fault:
            quarantined.add(QuarantinedObservation(observation=seen, reason=fault))
        else:
            groups[seen.group].append(seen)
    learnt = dict(before)
    for group, members in groups.items():
        correction, set_aside = _learn_group(members, group, before.get(group))
        quarantined |= set_aside
        if correction is not None:
            learnt[group] = correction
    found = dataclasses.replace(
        start,
        corrections=tuple(learnt[group] for group in sorted(learnt)),
        quarantined=tuple(sorted(quarantined, key=repr)),
    )
    return dataclasses.replace(found, id=digest(found)) if found.corrections else found


def _learn_group(
    members: Sequence[Observation], group: _Group, before: Correction | None
) -> tuple[Correction | None, set[QuarantinedObservation]]:
    """The correction of one group, and what had to be set aside for it."""
    by_reserved, far = _without_outliers(members, _reserved_residual, "reserved", OUTLIER_RESERVED)
    kept, far_context = _without_outliers(by_reserved, _context_residual, "context", OUTLIER_OUTSIDE)
    context = _estimate_residual(kept, _context_residual, before.context if before else None)
    kept, broken = _with_sound_nccl(kept, context)
    kept, far_nccl = _without_outliers(kept, _nccl_beside(context), "NCCL", OUTLIER_OUTSIDE)
    reserved = _estimate_residual(kept, _reserved_residual, before.reserved if before else None)
    set_aside = far | far_context | broken | far_nccl
    if reserved is None:
        return None, set_aside
    # Once more: of what was set aside for its NCCL, nothing else is believed either.
    context = _estimate_residual(kept, _context_residual, before.context if before else None)
    nccl = _estimate_residual(kept, _nccl_beside(context), before.nccl if before else None)
    gpu, torch = group
    return Correction(gpu=gpu, torch=torch, reserved=reserved, context=context, nccl=nccl), set_aside


def _without_outliers(
    members: Sequence[Observation], residual: _Residual, name: str, furthest: float
) -> tuple[list[Observation], set[QuarantinedObservation]]:
    measured = [(each, far) for each in members if (far := residual(each)) is not None]
    places = outliers([each for _, each in measured], furthest)
    set_aside = {
        QuarantinedObservation(
            observation=measured[place][0],
            reason=f"outlier: {name} bytes {measured[place][1]:+.0%} from predicted, unlike the others of "
            f"{' with torch '.join(measured[place][0].group)}",
        )
        for place in places
    }
    gone = {each.observation for each in set_aside}
    return [each for each in members if each not in gone], set_aside


def _with_sound_nccl(
    members: Sequence[Observation], context: Estimate | None
) -> tuple[list[Observation], set[QuarantinedObservation]]:
    """Without those in which what is left for NCCL, once the context is taken off, cannot be."""
    set_aside = set()
    for seen in members:
        measured = _nccl_bytes(seen, context)
        fault = measured is not None and ratio_fault("NCCL", seen.predicted_nccl_bytes, measured, MOST_OUTSIDE_RATIO)
        if fault:
            set_aside.add(QuarantinedObservation(observation=seen, reason=fault))
    gone = {each.observation for each in set_aside}
    return [each for each in members if each not in gone], set_aside


def _estimate_residual(members: Sequence[Observation], residual: _Residual, before: Estimate | None) -> Estimate | None:
    residuals = [far for each in members if (far := residual(each)) is not None]
    if not residuals:
        return before
    return estimate(residuals, before.residual if before else 0.0)


def _reserved_residual(seen: Observation) -> float | None:
    return _relative(seen.predicted_reserved_bytes, seen.measured_reserved_bytes)


def _context_residual(seen: Observation) -> float | None:
    if seen.measured_context_bytes is None:
        return None
    return _relative(seen.predicted_context_bytes, seen.measured_context_bytes)


def _nccl_beside(context: Estimate | None) -> _Residual:
    def residual(seen: Observation) -> float | None:
        measured = _nccl_bytes(seen, context)
        return None if measured is None else _relative(seen.predicted_nccl_bytes, measured)

    return residual


def _nccl_bytes(seen: Observation, context: Estimate | None) -> int | None:
    """NCCL's bytes: as measured, or what the process holds outside the allocator less its context.

    The context is that of this process if it was measured, else the predicted one as others of its group correct it.
    """
    if seen.measured_nccl_bytes is not None:
        return seen.measured_nccl_bytes
    if seen.measured_outside_bytes is None or not seen.predicted_nccl_bytes:
        return None
    if seen.measured_context_bytes is not None:
        return seen.measured_outside_bytes - seen.measured_context_bytes
    if not seen.predicted_context_bytes:
        return None
    corrected = 1 + (context.residual if context else 0.0)
    return seen.measured_outside_bytes - round(seen.predicted_context_bytes * corrected)


def _relative(predicted: int, measured: int) -> float:
    return (measured - predicted) / predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Of so many observations, how many lie in the interval that the others teach; names of those that do not."""

    observations: int
    covered: int
    outside: tuple[str, ...]


def cover_left_out(observations: Sequence[Observation]) -> Coverage:
    """Measured reserved bytes beside the interval around the predicted ones; broken observations are not asked."""
    sound = [each for each in observations if not fault_of(each)]
    outside = [each.case for each in sound if not _is_covered(each, [other for other in sound if other is not each])]
    return Coverage(observations=len(sound), covered=len(sound) - len(outside), outside=tuple(outside))


def _is_covered(left_out: Observation, others: Sequence[Observation]) -> bool:
    known = learn(others).applied_to(*left_out.group)
    low, high = reserved_band(known.reserved_residual, known.reserved_error)
    far = left_out.measured_reserved_bytes / left_out.predicted_reserved_bytes - 1
    return low <= far <= high


def measured_calibration() -> Calibration:
    """What the facts teach; `Calibration.none()` where there are none. Raises FactsError for facts that are damaged."""
    return _learnt(state_of(facts_folder(), OBSERVATIONS))


def measured_observations() -> tuple[Observation, ...]:
    """Every observed step of the facts."""
    return _read(state_of(facts_folder(), OBSERVATIONS))


@lru_cache(maxsize=4)
def _learnt(state: FolderState) -> Calibration:
    return learn(_read(state))


@lru_cache(maxsize=4)
def _read(state: FolderState) -> tuple[Observation, ...]:
    return tuple(observation_from_json(document, place) for place, document in read_lines(state))
