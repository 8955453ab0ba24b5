"""An explained failure for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from planner.report.plan_text import join_lines, sentence_lines
from planner.report.recorded_snapshot import short_path
from planner.report.style import Style, size
from planner.truth.failures.causes import Judgement
from planner.truth.failures.explanation import Explanation
from planner.truth.failures.messages import Cause, Form, GpuFailure, HostFailure, innermost_own
from planner.truth.failures.snapshot_failure import Remedy, SnapshotFailure

_LABEL = 34
_MOST_MESSAGES = 8
_HELD = {
    "free": "free",
    "pytorch_allocated": "PyTorch, in tensors",
    "pytorch_private_pools": "PyTorch, kept by CUDA graphs",
    "pytorch_unallocated": "PyTorch, reserved and in no tensor",
    "outside_allocator": "this process, outside of PyTorch",
    "other_processes": "other processes",
    "not_listed": "not listed by the driver",
    "not_pytorch": "not PyTorch's",
    "not_told": "not told by this form",
}
_GIVEN_UP = {
    Cause.FRAGMENTATION: "what PyTorch had reserved in no tensor",
    Cause.PRIVATE_POOLS: "what CUDA graphs keep for themselves",
    Cause.OTHER_PROCESS: "what other processes held",
    Cause.OUTSIDE_ALLOCATOR: "what this process held outside of PyTorch",
    Cause.NOT_PYTORCH: "what is not PyTorch's",
}
_IN_WORDS = {
    Cause.SINGLE_REQUEST: "One request was larger than all that the process may have.",
    Cause.LIMIT: "The process reached a limit of its own (set_per_process_memory_fraction); the GPU was not full.",
    Cause.FRAGMENTATION: "Fragmentation: enough was reserved and in no tensor, in pieces that did not fit.",
    Cause.PRIVATE_POOLS: "What CUDA graphs keep for themselves would have sufficed.",
    Cause.OTHER_PROCESS: "Another process held what was missing.",
    Cause.OUTSIDE_ALLOCATOR: "Memory outside of PyTorch's allocator: NCCL, CUDA's libraries, or another framework.",
    Cause.NOT_PYTORCH: "What was missing is not PyTorch's: another process, or this one outside of the allocator.",
    Cause.FULL: "The GPU was full of PyTorch's own tensors.",
    Cause.REFUSED: "The driver refused although it says that there was room.",
    Cause.UNKNOWN: "Why is not known from this.",
    Cause.HOST_LIMIT: "The host's memory: the limit of the job's cgroup (container, Slurm step) was reached.",
    Cause.HOST: "The host's memory: the whole machine ran out.",
}
_ADVICE = {
    Cause.SINGLE_REQUEST: "Make that tensor smaller: shorter sequences, a smaller batch, attention or loss in pieces.",
    Cause.FRAGMENTATION: "Try PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before torch 2.9).",
    Cause.OTHER_PROCESS: "Free the GPU, or choose another one; nvidia-smi shows whose the processes are.",
    Cause.NOT_PYTORCH: "nvidia-smi shows which processes hold it.",
    Cause.FULL: "Less has to be alive at once (batch, recompute, sharding): `planner plan` says what suffices.",
    Cause.LIMIT: "Raise the fraction, or plan with allocator.conf: per_process_memory_fraction:...",
}


def render(name: str, found: Explanation, style: Style) -> str:
    """`name` is what people call the file."""
    lines = [style.paint(name, "bold")]
    for each in found.messages[:_MOST_MESSAGES]:
        lines += ["", *_message(*each, style)]
    if len(found.messages) > _MOST_MESSAGES:
        lines += ["", f"and {len(found.messages) - _MOST_MESSAGES} messages more"]
    for snapshot in found.snapshots:
        lines += ["", *snapshot_lines(snapshot, style)]
    for host in found.host:
        lines += ["", *_host(host, style)]
    if found.partings:
        lines += ["", style.paint("beside the plan", "bold")]
        lines += [f"  {line}" for each in found.partings for line in sentence_lines([each.sentence], style)]
    lines += ["", *_conclusion(found, style)]
    return join_lines(lines)


def _message(failure: GpuFailure, judged: Judgement, style: Style) -> Iterator[str]:
    where = f"line {failure.line}" + (f", rank {failure.rank}" if failure.rank is not None else "")
    gpu = f", GPU {failure.device}" if failure.device is not None else ""
    form = "a form that is not known" if failure.form is Form.UNKNOWN else f"as {failure.form.value} says it"
    yield style.paint(f"{where}{gpu}: {form}", "bold")
    if failure.form is Form.UNKNOWN:
        yield f"  {failure.text[: style.width - 4]}"
    if failure.tried_bytes is not None:
        of = f" of {size(failure.total_bytes)}" if failure.total_bytes is not None else ""
        yield _row("asked for", f"{size(failure.tried_bytes)}{of}")
    if failure.allowed_bytes is not None:
        yield _row("the process's limit", size(failure.allowed_bytes))
    if judged.missing_bytes is not None and failure.total_bytes is not None:
        yield _row("missing", size(judged.missing_bytes))
    own = innermost_own(failure.frames)
    if own is not None:
        yield _row("raised at", f"{short_path(own.file)}:{own.line} {own.function}")
    yield from _held(judged, style)
    if said := _alone(judged):
        yield from (f"  {line}" for line in sentence_lines([said], style))
    for each in judged.contradictions:
        yield from (style.paint(f"  {line}", "yellow") for line in sentence_lines([f"Does not add up: {each}."], style))
    for each in judged.notes:
        yield from (f"  {line}" for line in sentence_lines([each], style))


def _alone(judged: Judgement) -> str:
    """What would have covered what was missing, where that is more than the cause, or too little to be called one."""
    each = "; ".join(_GIVEN_UP[cause] for cause in judged.alone)
    if judged.cause in judged.alone:
        return f"Each alone would have sufficed: {each}." if len(judged.alone) > 1 else ""
    if not judged.alone or judged.cause is Cause.SINGLE_REQUEST:
        return ""
    return (
        f"So little was missing that this would have covered it: {each}. It is less than a tenth of the GPU, and no "
        "cause: the next request would have failed."
    )


def _held(judged: Judgement, style: Style) -> Iterator[str]:
    whole = sum(judged.held.values())
    for name, count in sorted(judged.held.items(), key=lambda each: -each[1]):
        share = count / whole if whole else 0.0
        yield f"  {_HELD[name]:<{_LABEL}}{size(count):>12} {share:>6.1%}  {style.bar(share, 30)}".replace("%", " %")


def snapshot_lines(found: SnapshotFailure, style: Style) -> Iterator[str]:
    """One device's failure as its snapshot recorded it."""
    state = found.state
    yield style.paint(
        f"device {found.device}: {'a failed request' if found.recorded else 'the state'} in the snapshot", "bold"
    )
    if found.size_bytes is not None:
        asked = f"{size(found.size_bytes)}, {found.pool} pool, stream {found.stream}"
        segment = size(found.segment_bytes or found.size_bytes)
        of_device = "" if segment == size(found.size_bytes) else f", a segment of {segment}"
        yield _row("asked for", asked + of_device)
    if found.line:
        said = () if found.operator in found.line else (found.operator,)
        yield _row("by", " ".join((*said, found.line)))
    if found.module and found.module != found.line:
        yield _row("in", found.module)
    if found.phase is not None:
        yield _row("phase", found.phase.value)
    if found.free_bytes is not None:
        yield _row("free on the device", size(found.free_bytes))
    yield _row("allocated", size(state.allocated_bytes))
    yield _row("  of it rounding", size(state.allocated_bytes + state.waiting_bytes - state.requested_bytes))
    if state.waiting_bytes:
        yield _row("given up, in use on a stream", size(state.waiting_bytes))
    lost = state.reserved_bytes - state.allocated_bytes - state.waiting_bytes
    yield _row("reserved and free", f"{size(lost)}, the largest piece for it {size(state.largest_free_bytes)}")
    yield _row("  beside used blocks", size(state.inactive_split_bytes))
    yield "  held by"
    for each in state.holders:
        phase = f" ({each.phase.value})" if each.phase is not None else ""
        yield f"  {size(each.bytes):>12}  {each.count:>6} {style.times} {each.line}{phase}"
    if state.others_bytes:
        yield f"  {size(state.others_bytes):>12}  others"
    yield from _remedies(found.remedies, found, style)
    for note in found.notes:
        yield from (f"  {line}" for line in sentence_lines([note], style))


def _remedies(remedies: tuple[Remedy, ...], found: SnapshotFailure, style: Style) -> Iterator[str]:
    if not remedies:
        return
    yield f"  replayed with {size(found.capacity_bytes or 0)} for segments"
    for each in remedies:
        name = f"{each.conf or 'no settings'} (as recorded)" if each.same else each.conf
        about = "" if each.exact else ", about: what was there at the start is laid out anew"
        verdict = f"fits, {size(each.reserved_bytes)} reserved{about}" if each.fits else "runs out too"
        if each.same and not each.fits:
            more = "" if each.missing_bytes is None else f"; {size(each.missing_bytes)} more would have sufficed"
            verdict = "runs out earlier" if each.earlier else f"runs out, as it did{more}"
        line = f"    {name}: {verdict}"
        yield style.paint(line, "green") if each.fits and not each.same else line


def _host(found: HostFailure, style: Style) -> Iterator[str]:
    yield style.paint(f"line {found.line}: {found.said_by} says it of the host", "bold")
    if found.process:
        yield _row("killed", found.process)
    if found.resident_bytes is not None:
        yield _row("it held", size(found.resident_bytes))
    if found.limit_bytes is not None:
        yield _row("limit", size(found.limit_bytes))
    if found.requested_bytes is not None:
        yield _row("asked for", size(found.requested_bytes))
    if not found.certain:
        yield "  The same is said where it was killed for another reason: the kernel's log says which."


def _conclusion(found: Explanation, style: Style) -> Iterator[str]:
    cause = found.cause
    advice = _advice(found, cause)
    for line in sentence_lines([f"{_IN_WORDS[cause]} {advice}".strip()], style):
        yield style.paint(line, "yellow" if cause is Cause.UNKNOWN else "red")


def _advice(found: Explanation, cause: Cause) -> str:
    # Where the recorded settings fit as well, what failed lies outside of the recording, and no replay proves anything.
    replays = [one.remedies for one in found.snapshots if one.remedies and not one.remedies[0].fits]
    helped = [each.conf for remedies in replays for each in remedies if each.fits]
    tried = bool(replays)
    if helped:
        return (
            f"By the replays this request would have fitted with {' or with '.join(helped)}; what the job would have "
            "asked for next is not recorded."
        )
    if tried:
        return f"No setting of the allocator that was replayed would have helped. {_ADVICE.get(cause, '')}"
    if cause is Cause.UNKNOWN and found.snapshots and not found.messages:
        return "Give the job's log beside the snapshot: torch's message says what was asked for and what was free."
    return _ADVICE.get(cause, "")


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"
