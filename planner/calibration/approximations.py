"""Features of a job that a plan says by approximation, and how far published runs with them lay from their plans.

Residuals are measured / predicted - 1 of reserved or allocated bytes, each beside its row in docs/accuracy.md
(2026-11-20 to 22, torch 2.13); what is known of a feature widens the interval by the rules of a calibration.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner.calibration.estimate import Estimate, estimate
from planner.job.schema import Job

_HOLDS_COLLECTIVES_UNTIL = (2, 8)
"""Before this torch, functional collectives hold their tensors until NCCL's stream has passed (`record_stream`;
TORCH_NCCL_AVOID_RECORD_STREAMS is the default since, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)."""


@dataclass(frozen=True, slots=True)
class Approximation:
    """A feature, what about it is approximated, and the residuals of published runs that have it."""

    name: str
    sentence: str
    residuals: tuple[float, ...]

    @property
    def estimate(self) -> Estimate:
        return estimate(self.residuals)


CONVOLUTIONS = Approximation(
    "convolutions",
    "workspaces of convolutions are not known",
    (-0.012, 0.141, -0.006, 0.152, 0.202, 0.208, -0.096, 0.0),
)
"""xMem's eight convolutional networks (torch 2.6)."""
FOUR_BITS = Approximation(
    "four bits",
    "a model in four bits is planned with the products of bitsandbytes 0.49, its head not packed; up to 0.43.1 these "
    "keep their inputs until the next loss",
    (0.359, 0.332, 0.290),
)
"""litgpt's QLoRA of 2024, with bitsandbytes 0.42; as programs they are exact (docs/accuracy.md)."""
HELD_COLLECTIVES = Approximation(
    "held collectives",
    "collectives of tensor parallelism before torch 2.8 hold their tensors for as long as the device lags behind",
    (0.929, 0.333),
)
"""torchtitan's 2-D runs of 2024-03."""
ANOTHER_IMPLEMENTATION = Approximation(
    "another implementation",
    "the step is Megatron-LM's own, whose published runs reserved 15 to 31 % less than such plans; the program itself "
    "under planner run is nearer to them",
    (-0.192, -0.154, -0.238, -0.259, -0.293, -0.309, -0.230),
)
"""SimuMax's dense runs of Megatron-LM on eight B200 (torch 2.10), planned from their arguments."""
EVERY_APPROXIMATION = (CONVOLUTIONS, FOUR_BITS, HELD_COLLECTIVES, ANOTHER_IMPLEMENTATION)


def approximations_of_kernels(unknown_workspaces: Sequence[str]) -> tuple[Approximation, ...]:
    """Those of a trace, of a spec or of a program, with these kernels whose scratch memory nobody knows."""
    found = any(name.startswith("cuDNN") and "convolution" in name for name in unknown_workspaces)
    return (CONVOLUTIONS,) if found else ()


def approximations_of_spec(job: Job) -> tuple[Approximation, ...]:
    """Those of a job as it is described, which a program that is run does not have."""
    found = []
    adapter = job.model.adapter
    if adapter is not None and adapter.kind == "qlora" and adapter.load == "layers":
        found.append(FOUR_BITS)
    if job.parallel.tp.degree > 1 and _version(job.software.torch) < _HOLDS_COLLECTIVES_UNTIL:
        found.append(HELD_COLLECTIVES)
    if job.software.step != "torch":
        found.append(ANOTHER_IMPLEMENTATION)
    return tuple(found)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", text)[:2])
