"""An explained failure for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planner.report.style import Style, join_lines, sentence_lines, size
from planner.truth.failures.causes import ONE_EXABYTE, Judgement, in_words_of
from planner.truth.failures.explanation import Explanation
from planner.truth.failures.gpu_messages import innermost_own
from planner.truth.failures.messages import Cause, Form, GpuFailure, HostFailure
from planner.truth.failures.snapshot_failure import SnapshotFailure

_LABEL = 34
_MOST_MESSAGES = 8
_QUOTED = 300
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
    Cause.SINGLE_REQUEST: "One request asked for more than the process may have, or for nearly all of it.",
    Cause.LIMIT: "The process reached a limit of its own; the GPU was not full.",
    Cause.FRAGMENTATION: "Fragmentation: enough was reserved and in no tensor, in pieces that did not fit.",
    Cause.PRIVATE_POOLS: "What CUDA graphs keep for themselves would have sufficed.",
    Cause.OTHER_PROCESS: "Another process held what was missing.",
    Cause.OUTSIDE_ALLOCATOR: "GPU memory outside of PyTorch's allocator: NCCL, CUDA's libraries, or another framework.",
    Cause.NOT_PYTORCH: "What was missing is not PyTorch's: another process, or this one outside of the allocator.",
    Cause.FULL: "The GPU was full of PyTorch's own tensors.",
    Cause.REFUSED: "The driver refused although it says that there was room.",
    Cause.UNKNOWN: "GPU memory ran out. Why is not known from this.",
    Cause.HOST_LIMIT: "The host's memory: a limit was reached (of the container, the scheduler's job, shared memory).",
    Cause.HOST: "The host's memory ran out: the whole machine's, or what it lets a process take.",
}
_ADVICE = {
    Cause.SINGLE_REQUEST: "Make that tensor smaller: shorter sequences, a smaller batch, attention or loss in pieces.",
    Cause.FRAGMENTATION: "Try PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before torch 2.9).",
    Cause.OTHER_PROCESS: "Free the GPU, or choose another one; nvidia-smi shows whose the processes are.",
    Cause.NOT_PYTORCH: "nvidia-smi shows which processes hold it.",
    Cause.FULL: "Less has to be alive at once (batch, recompute, sharding): `planner plan` says what suffices.",
    Cause.LIMIT: "Raise it (set_per_process_memory_fraction, an engine's gpu_memory_utilization, Metal's "
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO), or plan with allocator.conf: per_process_memory_fraction:...",
}
_CONF = {
    "HIP": "PYTORCH_HIP_ALLOC_CONF", "NPU": "PYTORCH_NPU_ALLOC_CONF", "XPU": "PYTORCH_ALLOC_CONF",
    "MUSA": "PYTORCH_MUSA_ALLOC_CONF",
}  # fmt: skip
"""Where CUDA's variable is another one, before torch 2.9 as well."""
_KILLED = (
    "A process was killed (SIGKILL, exit codes 137 and -9). Mostly the host's memory ran out; of that the log says "
    "nothing. "
    "The kernel's log (dmesg -T | grep -i oom), the scheduler's record of the job (sacct, kubectl describe pod) or the "
    "container's limit says whether it did."
)
_ENDED = {
    "bus error": "A process ended with a bus error (SIGBUS, exit codes 135 and -7). Mostly shared memory was full: "
    "/dev/shm (a container's --shm-size, an emptyDir of medium Memory); df -h /dev/shm says how large it is. A mapped "
    "file that was cut short ends so, too.",
    "ray": "A worker of Ray ended, and Ray lists what may have been the reason without saying which it was. The "
    "worker's own log, `ray logs`, and the kernel's log (dmesg -T | grep -i oom) say more.",
}
"""What is said where nobody else gives a reason."""
_STATE = (
    "The snapshot records no request that failed: it says what was held when it was taken, not that memory ran out. "
    "Give the job's log beside the snapshot: torch's message says what was asked for and what was free."
)
_CAUGHT = "The log says that the program caught this and went on; of a failure it says nothing."
_OVERFLOW = (
    "A request of more than 1 EiB has the size of a shape that went wrong (an overflow, a negative number, a wrong "
    "index): "
    "a fault of the program, and no lack of memory."
)
_OF_EITHER = ("ONNX Runtime", "JAX")
"""Who says the same of the host's memory, where it computes there."""
_SAYS_HOW = ("exit code", "signal", "shell")


def render(name: str, explanation: Explanation, style: Style) -> str:
    """`name` is what people call the file."""
    lines = [style.paint(name, "bold")]
    for failure, judged in explanation.messages[:_MOST_MESSAGES]:
        lines += ["", *_message(failure, judged, style)]
    if len(explanation.messages) > _MOST_MESSAGES:
        lines += ["", f"and {len(explanation.messages) - _MOST_MESSAGES} messages more"]
    for snapshot in explanation.snapshots:
        lines += ["", *snapshot_lines(snapshot, style)]
    for host in explanation.host:
        lines += ["", *_host(host, style)]
    if explanation.partings:
        lines += ["", style.paint("beside the plan", "bold")]
        lines += _indented([parting.sentence for parting in explanation.partings], style)
    conclusion = sentence_lines([_conclusion(explanation)], style)
    color = "yellow" if explanation.cause is Cause.UNKNOWN else "red"
    return join_lines([*lines, "", *(style.paint(line, color) for line in conclusion)])


def _conclusion(explanation: Explanation) -> str:
    asked = max((failure.tried_bytes or 0 for failure, _ in explanation.messages), default=0)
    if explanation.cause is Cause.SINGLE_REQUEST and asked >= ONE_EXABYTE:
        return _OVERFLOW
    failed = [failure for failure, _ in explanation.messages if not failure.caught]
    recorded = failed or explanation.host or any(snapshot.recorded for snapshot in explanation.snapshots)
    if explanation.cause is Cause.UNKNOWN and not recorded:
        return _STATE if explanation.snapshots else _CAUGHT
    if explanation.cause is Cause.UNKNOWN and failed and all(failure.who in _OF_EITHER for failure in failed):
        where = f"the GPU's, or the host's where {failed[0].who} computes there"
        return f"Memory ran out: {where}. Why is not known from this."
    if explanation.cause is not Cause.UNKNOWN or failed or explanation.snapshots:
        vendor = next((failure.vendor for failure in failed), "")
        return in_words_of(vendor, f"{_IN_WORDS[explanation.cause]} {_advice(explanation)}".strip())
    if any(failure.certain for failure in explanation.host):
        return "The host's memory ran out: of the machine, or of a limit, is not said."
    if explanation.other_reason:
        return f'A process was killed, and the log gives a reason other than memory: "{explanation.other_reason}".'
    said_by = {failure.said_by for failure in explanation.host}
    return next(
        (sentence for who, sentence in _ENDED.items() if said_by <= {who, "exit code"} and who in said_by), _KILLED
    )


def _indented(sentences: Iterable[str], style: Style) -> Iterator[str]:
    return (f"  {line}" for sentence in sentences for line in sentence_lines([sentence], style))


def _message(failure: GpuFailure, judged: Judgement, style: Style) -> Iterator[str]:
    where = f"line {failure.line}" + (f", rank {failure.rank}" if failure.rank is not None else "")
    device = failure.vendor if failure.vendor in ("NPU", "XPU") else "GPU"
    gpu = f", {device} {failure.device}" if failure.device is not None else ""
    form = {
        Form.UNKNOWN: "a form that is not known",
        Form.DEVICE: f"as torch's {failure.vendor} backend says it",
        Form.FRAMEWORK: f"as of {failure.who}",
    }.get(failure.form, f"as {failure.form.value} says it")
    caught = ", and the program went on" if failure.caught else ""
    yield style.paint(f"{where}{gpu}: {form}{caught}", "bold")
    if failure.form in (Form.UNKNOWN, Form.PLAIN, Form.FRAMEWORK, Form.DRIVER, Form.LIBRARY):
        yield from _indented([failure.text[:_QUOTED]], style)
    if failure.tried_bytes is not None:
        of = f" of {size(failure.total_bytes)}" if failure.total_bytes is not None else ""
        asked = size(failure.tried_bytes) if failure.tried_bytes < ONE_EXABYTE else "more than 1 EiB"
        yield _row("asked for", f"{asked}{of}")
    if failure.allowed_bytes is not None:
        yield _row("the process's limit", size(failure.allowed_bytes))
    if judged.missing_bytes is not None and failure.total_bytes is not None:
        yield _row("missing", size(judged.missing_bytes))
    own = innermost_own(failure.frames)
    if own is not None:
        yield _row("raised at", f"{own.file}:{own.line} {own.function}")
    whole = failure.total_bytes or failure.allowed_bytes or sum(judged.held.values())
    for name, count in sorted(judged.held.items(), key=lambda row: -row[1]):
        share = count / whole if whole else 0.0
        yield f"  {_HELD[name]:<{_LABEL}}{size(count):>12} {share:>6.1%}  {style.bar(min(share, 1.0), 30)}".replace(
            "%", " %"
        )
    # What would have covered what was missing, where that is more than the cause, or too little to be called one.
    alone = "; ".join(_GIVEN_UP[cause] for cause in judged.alone)
    if judged.cause in judged.alone:
        if len(judged.alone) > 1:
            yield from _indented([f"Each alone would have sufficed: {alone}."], style)
    elif alone and judged.cause is not Cause.SINGLE_REQUEST:
        sentence = (
            f"So little was missing that this would have covered it: {alone}. It is less than a tenth of the GPU, and "
            "no cause: the next request would have failed."
        )
        yield from _indented([sentence], style)
    contradictions = _indented((f"Does not add up: {contradiction}." for contradiction in judged.contradictions), style)
    yield from (style.paint(line, "yellow") for line in contradictions)
    yield from _indented(judged.notes, style)


def snapshot_lines(failure: SnapshotFailure, style: Style) -> Iterator[str]:
    """One device's failure as its snapshot recorded it."""
    state = failure.state
    what = "a failed request" if failure.recorded else "the state"
    yield style.paint(f"device {failure.device}: {what} in the snapshot", "bold")
    if failure.size_bytes is not None:
        asked, segment = size(failure.size_bytes), size(failure.segment_bytes or failure.size_bytes)
        of_device = "" if segment == asked else f", a segment of {segment}"
        yield _row("asked for", f"{asked}, {failure.pool} pool, stream {failure.stream}{of_device}")
    if failure.line:
        operator = () if failure.operator in failure.line else (failure.operator,)
        yield _row("by", " ".join((*operator, failure.line)))
    if failure.module and failure.module != failure.line:
        yield _row("in", failure.module)
    if failure.phase is not None:
        yield _row("phase", failure.phase.value)
    if failure.free_bytes is not None:
        yield _row("free on the device", size(failure.free_bytes))
    yield _row("allocated", size(state.allocated_bytes))
    yield _row("  of it rounding", size(state.allocated_bytes + state.waiting_bytes - state.requested_bytes))
    if state.waiting_bytes:
        yield _row("given up, in use on a stream", size(state.waiting_bytes))
    lost = state.reserved_bytes - state.allocated_bytes - state.waiting_bytes
    yield _row("reserved and free", f"{size(lost)}, the largest piece for it {size(state.largest_free_bytes)}")
    yield _row("  beside used blocks", size(state.inactive_split_bytes))
    yield "  held by"
    for holder in state.holders:
        phase = f" ({holder.phase.value})" if holder.phase is not None else ""
        yield f"  {size(holder.bytes):>12}  {holder.count:>6} {style.times} {holder.line}{phase}"
    if state.others_bytes:
        yield f"  {size(state.others_bytes):>12}  others"
    if failure.remedies:
        yield f"  replayed with {size(failure.capacity_bytes or 0)} for segments"
    for remedy in failure.remedies:
        name = f"{remedy.conf or 'no settings'} (as recorded)" if remedy.same else remedy.conf
        about = "" if remedy.exact else ", about: what was there at the start is laid out anew"
        verdict = f"fits, {size(remedy.reserved_bytes)} reserved{about}" if remedy.fits else "runs out too"
        if remedy.same and not remedy.fits:
            more = "" if remedy.missing_bytes is None else f"; {size(remedy.missing_bytes)} more would have sufficed"
            verdict = "runs out earlier" if remedy.earlier else f"runs out, as it did{more}"
        line = f"    {name}: {verdict}"
        yield style.paint(line, "green") if remedy.fits and not remedy.same else line
    yield from _indented(failure.notes, style)


def _host(failure: HostFailure, style: Style) -> Iterator[str]:
    what = f"{failure.said_by} says it of the host"
    if not failure.certain and failure.said_by in (*_SAYS_HOW, *_ENDED):
        what = "a process ended" if failure.said_by in _ENDED else "a process was killed"
    yield style.paint(f"line {failure.line}: {what}", "bold")
    yield from _indented([failure.text], style)
    if failure.process:
        yield _row("killed", failure.process)
    for label, count in (
        ("it held", failure.resident_bytes),
        ("limit", failure.limit_bytes),
        ("asked for", failure.requested_bytes),
    ):
        if count is not None:
            yield _row(label, size(count))


def _advice(explanation: Explanation) -> str:
    # Where the recorded settings fit as well, what failed lies outside of the recording, and no replay proves anything.
    replays = [
        failure.remedies for failure in explanation.snapshots if failure.remedies and not failure.remedies[0].fits
    ]
    if helped := [remedy.conf for remedies in replays for remedy in remedies if remedy.fits]:
        return (
            f"By the replays this request would have fitted with {' or with '.join(helped)}; what the job would have "
            "asked for next is not recorded."
        )
    if replays:
        return f"No setting of the allocator that was replayed would have helped. {_ADVICE.get(explanation.cause, '')}"
    if explanation.cause is Cause.UNKNOWN and explanation.snapshots and not explanation.messages:
        return "Give the job's log beside the snapshot: torch's message says what was asked for and what was free."
    advice = _ADVICE.get(explanation.cause, "")
    vendor = next((_CONF[failure.vendor] for failure, _ in explanation.messages if failure.vendor in _CONF), "")
    if vendor and explanation.cause is Cause.FRAGMENTATION:
        return f"Try {vendor}=expandable_segments:True."
    return advice


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"
