"""What was learnt for one GPU and torch, and what of it applies to a job."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.calibration.estimate import Estimate
from planner.overhead.estimate import OutsideEstimate


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

    `reserved_residual` is where the middle of the reserved bytes' interval lies, `reserved_error` half its width, both
    relative. `sentences` say all of it to people.
    """

    gpu: str
    torch: str
    reserved_residual: float
    reserved_error: float
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

    def correct_outside(self, outside: OutsideEstimate) -> OutsideEstimate:
        """The bytes outside the allocator as measured ones would have them; `outside` itself if none were measured.

        The table's margins are given up with the weight of the measurements: of the least measured part that the
        process has.
        """
        known = self.correction
        if known is None or outside.calibrated or (known.context is None and known.nccl is None):
            return outside
        parts = [(outside.cuda_context_bytes, known.context)]
        if outside.nccl_bytes:
            parts.append((outside.nccl_bytes, known.nccl))
        if all(learnt is None for _, learnt in parts):
            return outside
        context, *nccl = (_correct_bytes(predicted, learnt) for predicted, learnt in parts)
        total = context + sum(nccl)
        weight = min(0.0 if learnt is None else learnt.weight for _, learnt in parts)
        spread = sum(predicted * learnt.margin(0.0) for predicted, learnt in parts if learnt is not None)
        below = _towards(outside.total_bytes - outside.low_bytes, spread, weight)
        above = _towards(outside.high_bytes - outside.total_bytes, spread, weight)
        return replace(
            outside,
            cuda_context_bytes=context,
            nccl_bytes=sum(nccl),
            low_bytes=max(total - below, 0),
            high_bytes=total + above,
            calibrated=True,
        )


def _correct_bytes(predicted: int, learnt: Estimate | None) -> int:
    return predicted if learnt is None else max(round(predicted * (1 + learnt.residual)), 0)


def _towards(prior: float, learnt: float, weight: float) -> int:
    """As `Estimate.margin`: what the prior has on top of the learnt margin is given up with the weight."""
    return round(learnt + (1 - weight) * max(prior - learnt, 0.0))


def apply_correction(
    correction: Correction | None, *, calibration: str, gpu: str, torch: str, prior_error: float, quarantined: int
) -> AppliedCorrection:
    """What a correction means for jobs on its GPU and torch; without one, what the prior says.

    `calibration` is its name, `quarantined` how many measurements of this GPU and torch it set aside.
    """
    if correction is None:
        sentences = (_set_aside(quarantined, gpu, torch),) if quarantined else ()
        return AppliedCorrection(
            gpu=gpu,
            torch=torch,
            reserved_residual=0.0,
            reserved_error=prior_error,
            quarantined=quarantined,
            sentences=sentences,
        )
    error = correction.reserved.margin(prior_error)
    return AppliedCorrection(
        gpu=gpu,
        torch=torch,
        reserved_residual=correction.reserved.residual,
        reserved_error=error,
        reserved_measurements=correction.reserved.measurements,
        context_measurements=correction.context.measurements if correction.context else 0,
        nccl_measurements=correction.nccl.measurements if correction.nccl else 0,
        quarantined=quarantined,
        correction=correction,
        sentences=(
            f"Calibration {calibration}, {gpu} with torch {torch}: the interval of reserved bytes lies "
            f"{correction.reserved.residual:+.1%} from the prediction, {error:.1%} to either side, "
            f"from {_format_measurements(correction.reserved.measurements)}.",
            f"{_describe_estimate('CUDA context', correction.context)}; {_describe_estimate('NCCL', correction.nccl)}.",
            *((_set_aside(quarantined, gpu, torch),) if quarantined else ()),
        ),
    )


def _describe_estimate(name: str, learnt: Estimate | None) -> str:
    if learnt is None:
        return f"{name} not measured there and not corrected"
    return f"{name} corrected by {learnt.residual:+.1%}, from {_format_measurements(learnt.measurements)}"


def _set_aside(count: int, gpu: str, torch: str) -> str:
    are = "is" if count == 1 else "are"
    return f"{_format_measurements(count)} on {gpu} with torch {torch} {are} quarantined and taught nothing."


def _format_measurements(measurements: int) -> str:
    return f"{measurements} measurement" if measurements == 1 else f"{measurements} measurements"
