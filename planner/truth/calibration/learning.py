"""Learns a calibration from observations or from the folder of facts, and tests whether its intervals hold."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from planner.hardware.facts import OBSERVATIONS, FolderState, facts_folder, read_lines, state_of
from planner.job.kinds import Kind
from planner.truth.calibration.interval import (
    Calibration,
    Correction,
    Estimate,
    digest,
    estimate,
    observation_from_json,
)
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

_Residual = Callable[[Observation], float | None]
"""Relative to predicted; None where it was not measured."""


def learn(observations: Iterable[Observation]) -> Calibration:
    """The calibration that observations teach, in any order; equal ones count once.

    Hand in all observations there are, every time.
    """
    learnt: dict[tuple[str, str], Correction] = {}
    quarantined: set[QuarantinedObservation] = set()
    groups: dict[tuple[str, str], list[Observation]] = defaultdict(list)
    for observation in sorted(set(observations), key=repr):
        if fault := fault_of(observation):
            quarantined.add(QuarantinedObservation(observation=observation, reason=fault))
        else:
            groups[observation.group].append(observation)
    for group, members in groups.items():
        correction, set_aside = _learn_group(members, group)
        quarantined |= set_aside
        if correction is not None:
            learnt[group] = correction
    calibration = dataclasses.replace(
        Calibration.none(),
        corrections=tuple(learnt[group] for group in sorted(learnt)),
        quarantined=tuple(sorted(quarantined, key=repr)),
    )
    return dataclasses.replace(calibration, id=digest(calibration)) if calibration.corrections else calibration


def _learn_group(
    members: Sequence[Observation], group: tuple[str, str]
) -> tuple[Correction | None, set[QuarantinedObservation]]:
    set_aside: set[QuarantinedObservation] = set()
    kept = _without_outliers(members, _reserved_residual, "reserved", OUTLIER_RESERVED, set_aside)
    kept = _without_outliers(kept, _context_residual, "context", OUTLIER_OUTSIDE, set_aside)
    context = _estimate_residual(kept, _context_residual)
    # What is left for NCCL once the context is taken off may not be possible.
    for observation in kept:
        measured = _nccl_bytes(observation, context)
        predicted = observation.predicted_nccl_bytes
        if measured is not None and (fault := ratio_fault("NCCL", predicted, measured, MOST_OUTSIDE_RATIO)):
            set_aside.add(QuarantinedObservation(observation=observation, reason=fault))
    gone = {quarantined.observation for quarantined in set_aside}
    kept = [observation for observation in kept if observation not in gone]
    kept = _without_outliers(kept, _nccl_beside(context), "NCCL", OUTLIER_OUTSIDE, set_aside)
    reserved = _estimate_residual(kept, _reserved_residual)
    if reserved is None:
        return None, set_aside
    # Once more: of what was set aside for its NCCL, nothing else is believed either.
    context = _estimate_residual(kept, _context_residual)
    nccl = _estimate_residual(kept, _nccl_beside(context))
    gpu, torch = group
    return Correction(gpu=gpu, torch=torch, reserved=reserved, context=context, nccl=nccl), set_aside


def _without_outliers(
    members: Sequence[Observation],
    residual: _Residual,
    name: str,
    furthest: float,
    set_aside: set[QuarantinedObservation],
) -> list[Observation]:
    measured = [(observation, far) for observation in members if (far := residual(observation)) is not None]
    gone = set()
    for place in outliers([far for _, far in measured], furthest):
        observation, far = measured[place]
        reason = (
            f"outlier: {name} bytes {far:+.0%} from predicted, unlike the others of "
            f"{' with torch '.join(observation.group)}"
        )
        set_aside.add(QuarantinedObservation(observation=observation, reason=reason))
        gone.add(observation)
    return [observation for observation in members if observation not in gone]


def _estimate_residual(members: Sequence[Observation], residual: _Residual) -> Estimate | None:
    residuals = [far for observation in members if (far := residual(observation)) is not None]
    return estimate(residuals) if residuals else None


def _reserved_residual(observation: Observation) -> float | None:
    return _relative(observation.predicted_reserved_bytes, observation.measured_reserved_bytes)


def _context_residual(observation: Observation) -> float | None:
    return _relative(observation.predicted_context_bytes, observation.measured_context_bytes)


def _nccl_beside(context: Estimate | None) -> _Residual:
    return lambda observation: _relative(observation.predicted_nccl_bytes, _nccl_bytes(observation, context))


def _relative(predicted: int, measured: int | None) -> float | None:
    return None if measured is None else (measured - predicted) / predicted


def _nccl_bytes(observation: Observation, context: Estimate | None) -> int | None:
    """NCCL's bytes: as measured, or what the process holds outside the allocator less its context.

    The context is that of this process if it was measured, else the predicted one as others of its group correct it.
    """
    measured, outside = observation.measured_nccl_bytes, observation.measured_outside_bytes
    if measured is not None or outside is None or not observation.predicted_nccl_bytes:
        return measured
    if observation.measured_context_bytes is not None:
        return outside - observation.measured_context_bytes
    if not observation.predicted_context_bytes:
        return None
    return outside - round(observation.predicted_context_bytes * (1 + (context.residual if context else 0.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Of so many observations, how many lie in the interval that the others teach; names of those that do not."""

    observations: int
    covered: int
    outside: tuple[str, ...]


def cover_left_out(observations: Sequence[Observation]) -> Coverage:
    """Measured reserved bytes beside the interval around the predicted ones; broken observations are not asked."""
    sound = [observation for observation in observations if not fault_of(observation)]
    outside = []
    for left_out in sound:
        known = learn(other for other in sound if other is not left_out)
        low, high = known.applied_to(*left_out.group).reserved_band(known.prior_band(Kind()))
        if not low <= left_out.measured_reserved_bytes / left_out.predicted_reserved_bytes - 1 <= high:
            outside.append(left_out.case)
    return Coverage(observations=len(sound), covered=len(sound) - len(outside), outside=tuple(outside))


def measured_calibration() -> Calibration:
    """What the facts teach; `Calibration.none()` where there are none. Raises FactsError for facts that are damaged."""
    return _learnt(state_of(facts_folder(), OBSERVATIONS))


def measured_observations() -> tuple[Observation, ...]:
    return _read(state_of(facts_folder(), OBSERVATIONS))


@lru_cache(maxsize=4)
def _learnt(state: FolderState) -> Calibration:
    return learn(_read(state))


@lru_cache(maxsize=4)
def _read(state: FolderState) -> tuple[Observation, ...]:
    return tuple(observation_from_json(document, place) for place, document in read_lines(state))
