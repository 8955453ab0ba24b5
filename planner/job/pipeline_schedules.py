"""Pipelines as numbers: how many stages a schedule has, which of them lie on a rank, how many layers each has.

The rules are those of torch.distributed.pipelining (torch 2.13, schedules.py) and, for layers that nobody split by
hand, of torchtitan (torchtitan/distributed/pipeline_parallel.py, `generate_llm_fqn_per_model_part`).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.job.schema import Job, Pp


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What a schedule asks for."""

    several: bool = True
    """It runs several stages to a rank; else exactly one."""
    v_shaped: bool = False
    """Exactly two stages to a rank, the second on the way back: the first rank has the first and the last stage."""
    in_rounds: bool = False
    """Micro-batches go in rounds of the pipeline's degree and have to fill them."""
    as_many_as_stages: bool = False
    """It wants at least one micro-batch for each stage."""
    splits_backward: bool = False
    """Gradients of inputs and of weights are computed by two actions."""


SCHEDULES = {
    "GPipe": Schedule(several=False),
    "1F1B": Schedule(several=False, as_many_as_stages=True),
    "Interleaved1F1B": Schedule(in_rounds=True),
    "LoopedBFS": Schedule(),
    "InterleavedZeroBubble": Schedule(in_rounds=True, splits_backward=True),
    "ZBVZeroBubble": Schedule(v_shaped=True, splits_backward=True),
    "DualPipeV": Schedule(v_shaped=True, as_many_as_stages=True, splits_backward=True),
}
"""By the names under which torch has them."""
USUAL_STAGES = 2
"""Stages to a rank of a schedule that takes several, unless the split says otherwise; torchtitan's default."""


def stage_count(pp: Pp) -> int:
    """How many stages the whole pipeline has."""
    if not SCHEDULES[pp.schedule].several:
        return pp.degree
    return len(pp.split) or pp.degree * USUAL_STAGES


def stages_of(pp: Pp, coordinate: int) -> tuple[int, ...]:
    """The stages of the ranks at this place of the pipeline, ascending."""
    if SCHEDULES[pp.schedule].v_shaped:
        return (coordinate, 2 * pp.degree - 1 - coordinate)
    return tuple(range(coordinate, stage_count(pp), pp.degree))


def layers_of_stages(pp: Pp, layers: int) -> tuple[int, ...]:
    """How many layers each stage has.

    Without a split they are as even as they can be where the embedding and the head count as a layer each, earlier
    stages having one more: torchtitan's rule.
    """
    if pp.split:
        return pp.split
    stages = stage_count(pp)
    layers_each, more = divmod(layers + 2, stages)
    counts = [layers_each + (stage < more) for stage in range(stages)]
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


def layers_of(job: Job) -> int | None:
    """How many layers the model says it has; None where only its code knows."""
    if job.model.decoder is not None:
        return job.model.decoder.layers
    layers = (job.model.hf_config or {}).get("num_hidden_layers")
    return layers if isinstance(layers, int) and not isinstance(layers, bool) else None
