"""A calibration: corrections for each GPU and torch, the interval in which device bytes lie, and its JSON object."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import PlannerError
from planner.job.json_text import canonical_json
from planner.job.kinds import ANY, Kind
from planner.job.overhead import OutsideEstimate
from planner.records import from_document, from_plain, to_plain
from planner.truth.calibration import recorded_errors
from planner.truth.calibration.observation import Observation, QuarantinedObservation
from planner.units import MIB
from planner.versions import minor_of

PRIOR_UNKNOWN_WORKSPACE_BYTES = 512 * MIB
"""How much more a process may reserve where its kernels take workspaces that nobody knows the size of.

Not a measurement of planner: a prior. cuDNN's convolutions are the case in point; a workspace lives as long as its
kernel, so the largest of them counts, not their sum.
"""

PRIOR_WEIGHT = 5
"""How many measurements the prior is worth: n measurements weigh n / (n + 5). A choice, not a measurement."""

COVERED = 0.95
SMALL_SAMPLE = 19
"""From this many residuals on, the largest bounds the next one with 95 % probability: n / (n + 1) >= 0.95."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How far measured lies from predicted, relative to predicted: 0.01 is one percent more than predicted.

    `residual` is the correction: the median, shrunk towards 0. `spread` is how far from the median 95 % of the
    residuals stay, from the residuals alone.
    """

    residual: float
    median: float
    spread: float
    measurements: int

    @property
    def weight(self) -> float:
        return weight_of(self.measurements)

    def margin(self, prior_margin: float) -> float:
        """How far the 95 % interval reaches to a side of `residual` on which the prior's reaches so far.

        It reaches as far as the spread around the median does. What the prior's margin has on top is given up with
        the weight; where residuals spread wider than the prior, the prior does not narrow them.
        """
        doubt = 1 - self.weight
        return self.spread + abs(self.median - self.residual) + doubt * max(prior_margin - self.spread, 0.0)


def estimate(residuals: Sequence[float]) -> Estimate:
    median = statistics.median(residuals)
    return Estimate(
        residual=weight_of(len(residuals)) * median,
        median=median,
        spread=_spread([abs(residual - median) for residual in residuals]),
        measurements=len(residuals),
    )


def weight_of(measurements: int) -> float:
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
    than the prior or not (tests/truth/calibrations/test_coverage.py).
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


@dataclass(frozen=True, slots=True)
class AppliedCorrection:
    """What of a calibration applies to one GPU and torch. `sentences` say all of it to people."""

    correction: Correction | None
    sentences: tuple[str, ...]

    @property
    def calibrated(self) -> bool:
        return self.correction is not None

    @property
    def reserved_residual(self) -> float:
        """By how much reserved bytes are off, relative."""
        return 0.0 if self.correction is None else self.correction.reserved.residual

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


def _describe_estimate(name: str, learnt: Estimate | None) -> str:
    if learnt is None:
        return f"{name} not measured there and not corrected"
    return f"{name} corrected by {learnt.residual:+.1%}, from {_format_measurements(learnt.measurements)}"


def _format_measurements(measurements: int) -> str:
    return f"{measurements} measurement" if measurements == 1 else f"{measurements} measurements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What is known from measurements: how reserved and outside bytes are corrected and how far off they remain.

    The prior holds wherever nothing was measured, and what was is shrunk towards it: how far recorded runs of the kind
    were off, or `reserved_error` (relative, at 95 %) where a person gave it, and `outside_correction_bytes` (added to
    the interval of what the overhead table says). `id` is a digest of what was learnt, or the name that a person gave
    to a prior. `quarantined` taught nothing.
    """

    id: str
    reserved_error: float | None = None
    outside_correction_bytes: int = 0
    corrections: tuple[Correction, ...] = ()
    quarantined: tuple[QuarantinedObservation, ...] = ()

    @classmethod
    def none(cls) -> Calibration:
        return cls(id="none")

    @property
    def calibrated(self) -> bool:
        return self.id != "none"

    def prior_band(self, kind: Kind) -> tuple[float, float]:
        """How far reserved bytes of a kind may be off before anything is measured, relative, with 95 % probability."""
        if self.reserved_error is None:
            return recorded_errors.reserved_band(kind)
        return -self.reserved_error, self.reserved_error

    def applied_to(self, gpu: str, torch: str) -> AppliedCorrection:
        """What applies to jobs on this GPU (catalog name) with this torch; its patch version does not matter."""
        group = gpu, minor_of(torch)
        where = " with torch ".join(group)
        correction = next((known for known in self.corrections if (known.gpu, known.torch) == group), None)
        sentences = []
        if correction is not None:
            reserved = correction.reserved
            sentences.append(
                f"Calibration {self.id}, {where}: the interval of reserved bytes is that of recorded runs, corrected "
                f"by {reserved.residual:+.1%}, from {_format_measurements(reserved.measurements)}."
            )
            context = _describe_estimate("CUDA context", correction.context)
            sentences.append(f"{context}; {_describe_estimate('NCCL', correction.nccl)}.")
        if quarantined := sum(broken.observation.group == group for broken in self.quarantined):
            count, are = _format_measurements(quarantined), "is" if quarantined == 1 else "are"
            sentences.append(f"{count} on {where} {are} quarantined and taught nothing.")
        return AppliedCorrection(correction, tuple(sentences))


def interval(
    device_bytes: int,
    outside: OutsideEstimate,
    calibration: Calibration,
    *,
    kind: Kind = ANY,
    unknown_workspaces: bool = False,
    gpu: str = "",
    torch: str = "",
    torch_difference: float = 0.0,
) -> tuple[int, int]:
    """Where the device bytes lie with 95 % probability: `(lowest, highest)`, both in bytes.

    `device_bytes` are reserved bytes plus `outside.total_bytes`; `outside` may be corrected already. `gpu` and `torch`
    are those of the job: without them, or where nothing was measured on them, recorded runs of its kind say how far
    reserved bytes may be off. What is reserved and what lies outside are off for causes of their own: their margins are
    added as those of independent errors. `torch_difference`: how far plans of the torch that made this one and of the
    job's were seen to differ, relative; it is added to either side of the former.
    """
    known = calibration.applied_to(gpu, torch)
    reserved = device_bytes - outside.total_bytes
    below, above = known.reserved_band(calibration.prior_band(kind))
    held = known.correct_outside(outside)
    correction = 0 if held.calibrated else calibration.outside_correction_bytes
    more = PRIOR_UNKNOWN_WORKSPACE_BYTES if unknown_workspaces else 0
    off = min(max(below, known.reserved_residual), above)
    middle = reserved + round(reserved * off) + held.total_bytes + correction
    fewer = math.hypot(reserved * (off - below + torch_difference), held.total_bytes - held.low_bytes)
    further = math.hypot(reserved * (above - off + torch_difference), held.high_bytes - held.total_bytes)
    return max(middle - round(fewer), held.low_bytes + correction, 0), middle + round(further) + more


SCHEMA = "planner.calibration/1"
OBSERVATION_SCHEMA = "planner.observation/1"
_DIGITS = 12


def to_json(calibration: Calibration) -> dict[str, Any]:
    """The calibration as plain values; all sizes are bytes, residuals are relative to what was predicted."""
    return {"schema": SCHEMA, **to_plain(calibration)}


def from_json(document: Mapping[str, Any]) -> Calibration:
    """The calibration that :func:`to_json` wrote.

    Raises PlannerError for another schema, an unknown key or a missing one, a value of a wrong type, and for figures
    that are not those of the name.
    """
    calibration = from_document(Calibration, document, SCHEMA, "calibration")
    if calibration.corrections and calibration.id != digest(calibration):
        raise PlannerError(
            f"the figures are not those of calibration {calibration.id}",
            remedy="learn it again",
            place="calibration.id",
        )
    return calibration


def observation_to_json(observation: Observation) -> dict[str, Any]:
    """An observation as one line of a file of facts, schema planner.observation/1."""
    return {"schema": OBSERVATION_SCHEMA, **to_plain(observation)}


def observation_from_json(document: Mapping[str, Any], place: str) -> Observation:
    """The observation that :func:`observation_to_json` wrote. Raises PlannerError for anything else."""
    if document.get("schema") != OBSERVATION_SCHEMA:
        schema = str(document.get("schema"))[:60]
        raise PlannerError(f"schema {schema!r} is not an observation", allowed=OBSERVATION_SCHEMA, place=place)
    return from_plain(Observation, {key: value for key, value in document.items() if key != "schema"}, place)


def digest(calibration: Calibration) -> str:
    """The name of a calibration: twelve hexadecimal digits of the hash of all that it holds."""
    content = {key: value for key, value in to_plain(calibration).items() if key != "id"}
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:_DIGITS]
