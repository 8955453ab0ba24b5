"""Kinds of jobs: what decides how far a plan may be from what is measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from planner.job.layout import Mesh
from planner.job.schema import Job
from planner.step_work import StepWork


class Trait(StrEnum):
    """What a few plans have. Of several that a job has, the first in this order decides."""

    OTHER_CUDNN = "another cuDNN"
    """Convolutions ask another cuDNN than the job's, which needs a GPU to say its own."""
    FOUR_BITS = "four bits"
    HELD_COLLECTIVES = "held collectives"
    """Collectives of tensor parallelism before torch 2.8 hold their tensors until NCCL's stream has passed."""
    HOST_AHEAD = "host ahead"
    """How far the host runs ahead of the GPU decides what is reserved."""


SENTENCES = {
    Trait.OTHER_CUDNN: "workspaces of convolutions are those of a newer cuDNN than the job's, which needs a GPU to say"
    " its own",
    Trait.FOUR_BITS: "a model in four bits is planned by the bitsandbytes that is installed, its head not packed;"
    " up to 0.43.1 its products keep their inputs until the next loss",
    Trait.HELD_COLLECTIVES: "collectives of tensor parallelism before torch 2.8 hold their tensors for as long as the"
    " device lags behind, which is estimated",
}
"""What is approximated about plans with such a trait."""

COMPILED_SHARE = 0.25
"""Of the kernels of an iteration, those of Inductor, from which on a step counts as compiled: a choice. All recorded
scripts that compile their model, and were asked, have more; who compiles single functions only has less."""
_BY_INDUCTOR = "inductor::"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What jobs have in common whose plans are off alike."""

    compiled: bool = False
    program: bool = False
    """Run as it is, not described by a spec."""
    traits: tuple[Trait, ...] = ()
    """In the order of `Trait`."""
    several_ranks: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        """Its names from the widest kind, "all", on: each is a part of the one before it."""
        return tuple(self._names())

    @property
    def name(self) -> str:
        """For people: `eager programs, several ranks`."""
        return self.path[-1]

    def _names(self) -> Iterator[str]:
        yield "all"
        name = "compiled" if self.compiled else "eager"
        yield f"{name} jobs"
        name += " programs" if self.program else " specs"
        yield name
        yield (name := f"{name}, {'several ranks' if self.several_ranks else 'one rank'}")
        if self.traits:
            yield f"{name}, {self.traits[0]}"

    def having(self, *more: Trait) -> Kind:
        """The same with more traits."""
        return Kind(
            compiled=self.compiled, program=self.program, several_ranks=self.several_ranks,
            traits=tuple(trait for trait in Trait if trait in {*self.traits, *more}),
        )  # fmt: skip


ANY = Kind()


def is_compiled(work: StepWork) -> bool:
    """Whether enough of an iteration's kernels are Inductor's."""
    counts = work.count_kernels()
    compiled = sum(count for number, count in counts.items() if work.kernels[number].op.startswith(_BY_INDUCTOR))
    return compiled > 0 and compiled >= COMPILED_SHARE * counts.total()


_HOLDS_COLLECTIVES_UNTIL = (2, 8)
"""Before this torch, functional collectives hold their tensors until NCCL's stream has passed (`record_stream`;
TORCH_NCCL_AVOID_RECORD_STREAMS is the default since, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)."""


def kind_of_spec(job: Job) -> Kind:
    """That of a job as it is described; whether it is compiled, and what its kernels have, its traces say."""
    adapter = job.model.adapter
    torch = tuple(int(part) for part in re.findall(r"\d+", job.software.torch)[:2])
    has = {
        Trait.FOUR_BITS: adapter is not None and adapter.kind == "qlora",
        Trait.HELD_COLLECTIVES: job.parallel.tp.degree > 1 and torch < _HOLDS_COLLECTIVES_UNTIL,
    }
    return Kind(several_ranks=Mesh.of(job.parallel).world_size > 1).having(*(trait for trait in has if has[trait]))
