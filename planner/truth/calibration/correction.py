"""Corrections learnt for one GPU and torch, with their margins, and what plans say by approximation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.job.overhead import OutsideEstimate

PRIOR_WEIGHT = 5
"""How many measurements the prior is worth: n measurements weigh n / (n + 5). A choice, not a measurement."""

COVERED = 0.95
SMALL_SAMPLE = 19
"""From this many residuals on, the largest bounds the next one with 95 % probability: n / (n + 1) >= 0.95."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How far measured lies from predicted, relative to predicted: 0.01 is one percent more than predicted.

    `residual` is the correction: the median, shrunk towards the prior. `spread` is how far from the median 95 % of the
    residuals stay, from the residuals alone.
    """

    residual: float
    median: float
    spread: float
    measurements: int

    @property
    def weight(self) -> float:
        """What the measurements weigh against the prior, from 0 to 1."""
        return weight_of(self.measurements)

    def margin(self, prior_margin: float) -> float:
        """How far the 95 % interval reaches to a side of `residual` on which the prior's reaches so far.

        It reaches as far as the spread around the median does. What the prior's margin has on top is given up with
        the weight; where residuals spread wider than the prior, the prior does not narrow them.
        """
        doubt = 1 - self.weight
        return self.spread + abs(self.median - self.residual) + doubt * max(prior_margin - self.spread, 0.0)


def estimate(residuals: Sequence[float], prior: float = 0.0) -> Estimate:
    """The correction that residuals teach, in any order; there must be one at least. `prior` is where it starts."""
    median = statistics.median(residuals)
    weight = weight_of(len(residuals))
    return Estimate(
        residual=prior + weight * (median - prior),
        median=median,
        spread=_spread([abs(residual - median) for residual in residuals]),
        measurements=len(residuals),
    )


def weight_of(measurements: int) -> float:
    """n / (n + PRIOR_WEIGHT)."""
    return measurements / (measurements + PRIOR_WEIGHT)


def _spread(deviations: Sequence[float]) -> float:
    """The order statistic that bounds a fresh residual with 95 % probability; of few, the largest and more."""
    count = len(deviations)
    rank = math.ceil(COVERED * (count + 1))
    if rank <= count:
        return sorted(deviations)[rank - 1]
    return max(deviations) * small_sample_factor(count)


def small_sample_factor(count: int) -> float:
    """By how much the largest of few deviations is stretched: 1 from SMALL_SAMPLE on, more the fewer there are.

    The exponent is a choice: with it three residuals or more cover 95 % of fresh ones that are normal or Laplace, wider
    than the prior or not (tests/calibrations/test_coverage.py).
    """
    return math.pow(max(1.0, (SMALL_SAMPLE + 1) / (count + 1)), 0.75)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What measurements on one GPU with one torch (major.minor) taught; None is what nobody measured there."""

    gpu: str
    torch: str
    reserved: Estimate
    context: Estimate | None = None
    nccl: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedCorrection:
    """What of a calibration applies to one GPU and torch, and on how many measurements each correction stands.

    `reserved_residual` is by how much reserved bytes are off, relative. `sentences` say all of it to people.
    """

    gpu: str
    torch: str
    reserved_residual: float = 0.0
    reserved_measurements: int = 0
    context_measurements: int = 0
    nccl_measurements: int = 0
    quarantined: int = 0
    correction: Correction | None = None
    sentences: tuple[str, ...] = ()

    @property
    def calibrated(self) -> bool:
        """Whether anything was measured on this GPU and torch."""
        return self.correction is not None

    def reserved_band(self, prior: tuple[float, float]) -> tuple[float, float]:
        """Between which reserved / planned - 1 lies with 95 % probability, where it does so for the prior between
        these."""
        if self.correction is None:
            return prior
        reserved, (low, high) = self.correction.reserved, prior
        return reserved.residual - reserved.margin(-low), reserved.residual + reserved.margin(high)

    def correct_outside(self, outside: OutsideEstimate) -> OutsideEstimate:
        """The bytes outside the allocator as measured ones would have them; `outside` itself if none were measured.

        The table's margins are given up with the weight of the measurements: of the least measured part that the
        process has.
        """
        known = self.correction
        if known is None or outside.calibrated:
            return outside
        parts = [(outside.cuda_context_bytes, known.context)]
        if outside.nccl_bytes:
            parts.append((outside.nccl_bytes, known.nccl))
        if all(learnt is None for _, learnt in parts):
            return outside
        context, *nccl = (
            predicted if learnt is None else max(round(predicted * (1 + learnt.residual)), 0)
            for predicted, learnt in parts
        )
        total = context + sum(nccl)
        weight = min(0.0 if learnt is None else learnt.weight for _, learnt in parts)
        spread = sum(predicted * learnt.margin(0.0) for predicted, learnt in parts if learnt is not None)
        # As `Estimate.margin`: what the table's margin has on top of the learnt one is given up with the weight.
        below, above = (
            round(spread + (1 - weight) * max(margin - spread, 0.0))
            for margin in (outside.total_bytes - outside.low_bytes, outside.high_bytes - outside.total_bytes)
        )
        return replace(
            outside,
            cuda_context_bytes=context,
            nccl_bytes=sum(nccl),
            low_bytes=max(total - below, 0),
            high_bytes=total + above,
            calibrated=True,
        )


def apply_correction(
    correction: Correction | None, *, calibration: str, gpu: str, torch: str, quarantined: int
) -> AppliedCorrection:
    """What a correction means for jobs on its GPU and torch; without one, that nothing is corrected.

    `calibration` is its name, `quarantined` how many measurements of this GPU and torch it set aside.
    """
    sentences = []
    if quarantined:
        are = "is" if quarantined == 1 else "are"
        count = _format_measurements(quarantined)
        sentences.append(f"{count} on {gpu} with torch {torch} {are} quarantined and taught nothing.")
    applied = AppliedCorrection(gpu=gpu, torch=torch, quarantined=quarantined, sentences=tuple(sentences))
    if correction is None:
        return applied
    reserved = correction.reserved
    return replace(
        applied,
        reserved_residual=reserved.residual,
        reserved_measurements=reserved.measurements,
        context_measurements=correction.context.measurements if correction.context else 0,
        nccl_measurements=correction.nccl.measurements if correction.nccl else 0,
        correction=correction,
        sentences=(
            f"Calibration {calibration}, {gpu} with torch {torch}: the interval of reserved bytes is that of recorded "
            f"runs, corrected by {reserved.residual:+.1%}, from {_format_measurements(reserved.measurements)}.",
            f"{_describe_estimate('CUDA context', correction.context)}; {_describe_estimate('NCCL', correction.nccl)}.",
            *sentences,
        ),
    )


def _describe_estimate(name: str, learnt: Estimate | None) -> str:
    if learnt is None:
        return f"{name} not measured there and not corrected"
    return f"{name} corrected by {learnt.residual:+.1%}, from {_format_measurements(learnt.measurements)}"


def _format_measurements(measurements: int) -> str:
    return f"{measurements} measurement" if measurements == 1 else f"{measurements} measurements"
