"""Sentences for people about a plan: what it rests on, what it takes for granted, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planner.job.overhead import outside_of
from planner.job.schema import Compile, Job
from planner.planning import identity, judging, post_training
from planner.planning.judging import RankTrace
from planner.report.statement import AnotherTorch
from planner.tracing.rank_trace import Trace
from planner.truth.calibration.correction import (
    Approximation,
    approximations_of_kernels,
    approximations_of_spec,
)
from planner.versions import minor_of

_PADDING = {
    "none": "sequences of one length without an attention mask (train.padding: none)",
    "right": "batches with gaps and an attention mask (train.padding: right)",
}


def assumptions_of(job: Job) -> tuple[str, ...]:
    """Which padding and which cache of keys and values were taken; nothing for models that take no tokens."""
    config, train = job.model.hf_config, job.train
    if config is None or not train.sequence_length:
        return ()
    taken = [_PADDING[train.padding]]
    if train.lengths is not None:
        taken = [taken[0].replace("sequences of one length", "sequences padded to the longest of their batch")]
    if "vision_config" in config and not train.inputs:
        taken.append(
            "a picture of the config's size in each sequence, none where it does not say how many tokens one takes"
        )
    if job.model.use_cache:
        taken.append("past_key_values are made in training (model.use_cache: true)")
    elif config.get("use_cache", True) and train.recompute.mode == "none":
        taken.append("no past_key_values in training (model.use_cache: false, as transformers' Trainer has it)")
    return (f"Taken for the batches: {'; '.join(taken)}.",)


def notes_of(job: Job, rank_traces: Sequence[RankTrace]) -> tuple[str, ...]:
    """Where the figures outside the allocator come from, what was not counted, and what was taken for granted."""
    notes = list(outside_of(job).provenance)
    unknown = unknown_workspaces_of(each.trace for each in rank_traces)
    notes += describe_unknown_workspaces(unknown)
    notes += sorted({sentence for each in rank_traces for sentence in each.trace.counted_workspaces})
    notes += assumptions_of(job)
    notes += _describe_engine(rank_traces, job)
    notes += describe_approximations((*approximations_of_kernels(unknown), *approximations_of_spec(job)))
    if job.train.compile is not None:
        notes.append(_describe_compiling(job.train.compile, rank_traces))
    return (*notes, *describe_another_torch(job.software.torch))


def describe_another_torch(asked: str) -> list[str]:
    """The note for people where this is not the torch that makes the plans; none where it is."""
    another = another_torch_than(asked)
    if another is None:
        return []
    own = minor_of(asked)
    return [f"{another.sentence} `planner torch {own}` makes an environment in which its own is at hand."]


def another_torch_than(asked: str) -> AnotherTorch | None:
    """The torch that makes the plans here, if its release is another than this."""
    traced, wider = identity.installed_torch(), judging.torch_difference(asked)
    if minor_of(asked) == traced:
        return None
    sentence = (
        f"The job runs torch {asked}; it was traced with torch {traced}, and its interval is {wider:.1%} wider to"
        " either side: so far plans of the two were seen to differ."
    )
    return AnotherTorch(asked=asked, planned_with=traced, difference=wider, sentence=sentence)


def unknown_workspaces_of(traces: Iterable[Trace]) -> list[str]:
    """The kernels of any of the traces whose scratch memory nobody knows, each once, in order."""
    return sorted({name for each in traces for name in each.unknown_workspaces})


def describe_unknown_workspaces(names: Sequence[str]) -> list[str]:
    """The note on them for people; none without any."""
    return [f"Workspaces of unknown size, not counted: {'; '.join(names)}."] if names else []


def describe_approximations(approximations: Sequence[Approximation]) -> list[str]:
    """The note on them for people; none without any."""
    said = "; ".join(each.sentence for each in approximations)
    return [f"Approximated, and the interval is wider for it: {said}."] if said else []


def _describe_engine(rank_traces: Sequence[RankTrace], job: Job) -> list[str]:
    figures = next((each.trace.engine for each in rank_traces if each.trace.engine is not None), None)
    if figures is None:
        return []
    return [f"Taken for the engine: {'; '.join(post_training.assumptions_of(job, figures))}."]


def _describe_compiling(compiled: Compile, rank_traces: Sequence[RankTrace]) -> str:
    if compiled.planned_as == "eager":
        return (
            f"Planned as the eager step, as the job says: what it takes compiled ({', '.join(compiled.scope)}) is not"
            " known, and nothing is refused for what the eager step takes."
        )
    torch = identity.installed_torch()
    said = f"Compiled on paper by {compiled.backend} of torch {torch}: {', '.join(compiled.scope)}."
    assumed = sorted({sentence for each in rank_traces for sentence in each.trace.assumed})
    return f"{said} Assumed where a GPU would have been timed: {'; '.join(assumed)}." if assumed else said
