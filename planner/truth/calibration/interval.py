"""A calibration, the interval in which device bytes lie, and the JSON object `planner.calibration/1`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import PlannerError
from planner.job.json_text import canonical_json
from planner.job.kinds import ANY, Kind
from planner.job.overhead import OutsideEstimate
from planner.records import from_document, from_plain, to_plain
from planner.truth.calibration import recorded_errors
from planner.truth.calibration.correction import AppliedCorrection, Correction, apply_correction
from planner.truth.calibration.observation import Observation, QuarantinedObservation
from planner.units import MIB
from planner.versions import minor_of

PRIOR_UNKNOWN_WORKSPACE_BYTES = 512 * MIB
"""How much more a process may reserve where its kernels take workspaces that nobody knows the size of.

Not a measurement of planner: a prior. cuDNN's convolutions are the case in point; a workspace lives as long as its
kernel, so the largest of them counts, not their sum.
"""


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
    """One for each GPU and torch (major.minor), in their order."""
    quarantined: tuple[QuarantinedObservation, ...] = ()

    @classmethod
    def none(cls) -> Calibration:
        """Nothing measured: no correction, the interval of recorded runs."""
        return cls(id="none")

    @property
    def calibrated(self) -> bool:
        """Whether anything is known for anybody; for one job ask `applied_to`."""
        return self.id != "none"

    def prior_band(self, kind: Kind) -> tuple[float, float]:
        """How far reserved bytes of a kind may be off before anything is measured, relative, with 95 % probability."""
        if self.reserved_error is None:
            return recorded_errors.reserved_band(kind)
        return -self.reserved_error, self.reserved_error

    def applied_to(self, gpu: str, torch: str) -> AppliedCorrection:
        """What applies to jobs on this GPU (catalog name) with this torch; its patch version does not matter."""
        group = gpu, minor_of(torch)
        correction = next((known for known in self.corrections if (known.gpu, known.torch) == group), None)
        return apply_correction(
            correction,
            calibration=self.id,
            gpu=group[0],
            torch=group[1],
            quarantined=sum(broken.observation.group == group for broken in self.quarantined),
        )


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
        raise PlannerError(f"schema {schema!r} is no observation", allowed=OBSERVATION_SCHEMA, place=place)
    return from_plain(Observation, {key: value for key, value in document.items() if key != "schema"}, place)


def digest(calibration: Calibration) -> str:
    """The name of a calibration: twelve hexadecimal digits of the hash of all that it holds."""
    content = {key: value for key, value in to_plain(calibration).items() if key != "id"}
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:_DIGITS]
