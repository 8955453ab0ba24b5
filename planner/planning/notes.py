"""Sentences for people about a plan: what it rests on, what it takes for granted, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from planner.hardware import catalog
from planner.job.kinds import SENTENCES
from planner.job.schema import Compile, Job
from planner.planning import identity, judging, trace_variants
from planner.planning.inputs import ProgramInputs
from planner.planning.program_ranks import describe_asked_gpus
from planner.report.statement import AnotherTorch, RankClassStatement
from planner.tracing.rank_trace import Trace
from planner.truth.calibration import recorded_errors
from planner.units import show_bytes
from planner.upstream.torch_releases import SPECIAL_PARTS, largest_difference
from planner.versions import TESTED, minor_of, newer_than_tested

_PADDING = {
    "none": "sequences of one length without an attention mask (train.padding: none)",
    "right": "batches with gaps and an attention mask (train.padding: right)",
}


def notes_of(
    work: ProgramInputs, traces: Sequence[Trace], rank_classes: Sequence[RankClassStatement]
) -> tuple[str, ...]:
    """What was not counted, and what was assumed."""
    notes = [*_workspace_notes(traces), *_approximation_notes(rank_classes)]
    installed: Mapping[str, str] = {"torch": identity.installed_torch()}
    if work.job is not None:
        notes += _notes_of_spec(work.job, traces)
        installed = identity.software()
    elif work.walled is None:
        notes += describe_asked_gpus(work.line)
    notes += newer_software_notes(installed, work.special_parts)
    return (*notes, *_another_torch_notes(work.software.torch, work.special_parts))


def _notes_of_spec(job: Job, traces: Sequence[Trace]) -> list[str]:
    notes = _describe_batches(job)
    if job.train.compile is not None:
        notes.append(_describe_compiling(job.train.compile, traces))
    if unified := max((trace.unified_bytes for trace in traces), default=0):
        notes.append(
            f"{show_bytes(unified)} of the optimizer's state lie in unified memory (cudaMallocManaged), which is not"
            " counted: on the GPU while it has room, and moved to the host where it has none."
        )
    if (cluster := job.cluster).gpu_fraction < 1 or cluster.gpu_memory:
        share = f"{show_bytes(cluster.capacity_bytes)} of the {show_bytes(cluster.gpu.total_bytes)} of each GPU"
        notes.append(f"The job may use {share}, its CUDA context included (cluster.gpu_fraction, cluster.gpu_memory).")
    if (known := catalog.by_name(job.cluster.gpu.name)) is not None and known.note:
        notes.append(known.note)
    return notes


def _workspace_notes(traces: Sequence[Trace]) -> list[str]:
    """The kernels whose scratch memory nobody knows, and those whose was counted."""
    unknown = _unknown_workspaces(traces)
    notes = [f"Workspaces of unknown size, not counted: {'; '.join(unknown)}."] if unknown else []
    notes += sorted({trace.other_kernels for trace in traces if trace.other_kernels})
    convolving = next((trace for trace in traces if trace_variants.has_workspaces(trace.events)), None)
    if convolving is not None and convolving.other_cudnn:
        own, asked = convolving.other_cudnn
        notes.append(f"cuDNN {asked} is asked about convolutions in the place of the job's {own}, which needs a GPU.")
    elif convolving is not None:
        notes.append(
            "Workspaces of convolutions are what cuDNN asks for without a GPU. With one it was seen to ask for up to"
            f" {trace_variants.LARGEST_DIFFERENCE:.0%} more or less: the interval is of replays with such."
        )
    return notes


def _approximation_notes(rank_classes: Iterable[RankClassStatement]) -> list[str]:
    """What is approximated about each kind."""
    kinds = dict.fromkeys(rank_class.kind for rank_class in rank_classes)
    approximated = ("; ".join(SENTENCES[trait] for trait in kind.traits if trait in SENTENCES) for kind in kinds)
    return [f"Approximated: {sentence}." for sentence in approximated if sentence]


def interval_sources(rank_classes: Iterable[RankClassStatement]) -> list[str]:
    """How far recorded runs of each kind were off."""
    sources = []
    for kind in dict.fromkeys(rank_class.kind for rank_class in rank_classes):
        low, high = recorded_errors.reserved_band(kind)
        runs = recorded_errors.count_runs(kind)
        of_runs = f"{runs} recorded run{'s' if runs != 1 else ''} of its kind"
        if runs < recorded_errors.ENOUGH_RUNS:
            of_runs += ", and what wider kinds say"
        sources.append(f"The interval of {kind.name} is {low:+.1%} to {high:+.1%} of what is reserved: {of_runs}.")
    return sources


def _unknown_workspaces(traces: Sequence[Trace]) -> list[str]:
    return sorted({name for trace in traces for name in trace.unknown_workspaces})


def newer_software_notes(installed: Mapping[str, str], parts: frozenset[str] = SPECIAL_PARTS) -> list[str]:
    """The note where something is newer than what planner is tested with, and what follows; `parts` as
    `torch_difference`."""
    newer = newer_than_tested(installed)
    if not newer:
        return []
    named = " and ".join(f"{name} {version}" for name, version in newer.items())
    tested = " and ".join(f"{name} {TESTED[name]}" for name in newer)
    sentence = f"Planned with {named}; planner is tested with {tested}, and no recording of what is newer was compared."
    if "torch" in newer:
        differ = largest_difference(TESTED["torch"], newer["torch"], parts)
        sentence += f" Plans of torch {TESTED['torch']} and {newer['torch']} were seen to differ by up to {differ:.1%}."
    return [f"{sentence} `pip install --constraint constraints.txt '.[plan]'` in a checkout installs what is tested."]


def _another_torch_notes(asked: str, parts: frozenset[str] = SPECIAL_PARTS) -> list[str]:
    """The note where `asked` is not the torch that makes the plans; none where it is."""
    another = another_torch_than(asked, parts)
    if another is None:
        return []
    own = minor_of(asked)
    return [f"{another.sentence} `planner torch {own}` makes an environment in which its own is at hand."]


def another_torch_than(asked: str, parts: frozenset[str] = SPECIAL_PARTS) -> AnotherTorch | None:
    """The torch that makes the plans here, if its release is another than this; `parts` as `torch_difference`."""
    traced, wider = identity.installed_torch(), judging.torch_difference(asked, parts)
    if minor_of(asked) == traced:
        return None
    sentence = (
        f"The job runs torch {asked}; it was traced with torch {traced}, and its interval is {wider:.1%} wider to"
        " either side: so far plans of the two were seen to differ."
    )
    return AnotherTorch(asked=asked, planned_with=traced, difference=wider, sentence=sentence)


def _describe_batches(job: Job) -> list[str]:
    """Which padding and which cache of keys and values were taken; nothing for models that take no tokens."""
    config, train = job.model.hf_config, job.train
    if config is None or not train.sequence_length:
        return []
    taken = [_PADDING[train.padding]]
    if train.lengths is not None:
        taken = [taken[0].replace("sequences of one length", "sequences padded to the longest of their batch")]
    if "vision_config" in config and not train.inputs:
        taken.append(
            "a picture of the config's size in each sequence, none where it does not say how many tokens one takes"
        )
    if config.get("use_cache", True) and train.recompute.mode == "none":
        taken.append("no past_key_values in training (as transformers' Trainer has it)")
    return [f"Assumed batches: {'; '.join(taken)}."]


def _describe_compiling(compiled: Compile, traces: Sequence[Trace]) -> str:
    torch = identity.installed_torch()
    sentence = f"Compiled on paper by {compiled.backend} of torch {torch}: {', '.join(compiled.scope)}."
    assumed = sorted({text for trace in traces for text in trace.assumed})
    return f"{sentence} Assumed where a GPU would have been timed: {'; '.join(assumed)}." if assumed else sentence
