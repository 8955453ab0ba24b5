"""Why a request failed, from the figures of its message: arithmetic only, and what does not add up is said.

What was missing is what was asked for less what was free. A cause is named if it alone would have sufficed and holds
at least a tenth of the GPU; of several the largest is named, and the others are told. Otherwise the GPU was full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planner.hardware.gpus import GPUS
from planner.report.style import size
from planner.truth.failures.messages import Cause, Form, GpuFailure, ProcessBytes
from planner.units import MIB

SMALLEST_SHARE = 10
"""A part of the GPU that is smaller than one in so many is not called the cause: the next request would have failed."""
_UNUSABLE = 100
"""One part in so many of the GPU may be free and yet refused. Seen: 10 MiB of 4 GiB (Synthintel0/MyGirlGPT#11), 10 MiB
of 7.75 GiB (vllm-project/vllm#12529), 72 MiB of 10.76 GiB (RenYurui/StructureFlow#35)."""
CONTEXT_BYTES = max(each.context.largest for each in GPUS if each.context is not None) * MIB
"""What a bare CUDA context takes at most, of the GPUs on which it was measured: nobody can give it up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """`held` says who held what, in bytes, as far as the message tells; `alone` are the causes without which it would
    have fitted, each by itself."""

    cause: Cause
    missing_bytes: int | None
    held: Mapping[str, int]
    alone: tuple[Cause, ...]
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Shares:
    """Who holds what of the GPU; None is not told."""

    this: int | None
    others: int
    outside: int | None
    not_listed: int | None
    not_pytorch: int | None


def judge(failure: GpuFailure) -> Judgement:
    """The cause, and what it stands on."""
    total, tried, free = failure.total_bytes, failure.tried_bytes, failure.free_bytes
    if failure.form is Form.UNKNOWN:
        return _nothing(Cause.UNKNOWN, failure, "it begins as a message of being out of memory, in no form known here")
    if total is None or tried is None or failure.allocated_bytes is None:
        return _nothing(Cause.OUTSIDE_ALLOCATOR, failure, *_outside_notes(failure))
    if free is None:
        return _nothing(Cause.UNKNOWN, failure, "this form does not say what was free, so no cause follows from it")
    shares, notes = _shares(failure)
    room, limited = _room(failure, free)
    missing = max(tried - room, 0)
    candidates = _candidates(failure, shares, missing)
    alone = tuple(cause for cause, _ in candidates) if missing else ()
    cause = _cause(failure, total, tried, free, limited, candidates, missing)
    return Judgement(
        cause=cause,
        missing_bytes=missing,
        held=_held(failure, shares, free),
        alone=alone,
        contradictions=tuple(_contradictions(failure, shares, total, free)),
        notes=(*notes, *_cause_notes(cause, failure, total, tried, free)),
    )


def own_process(failure: GpuFailure) -> tuple[int | None, tuple[ProcessBytes, ...], bool]:
    """What this process holds, the others, and whether it had to be found among them.

    A process in a container does not know the number under which the driver lists it, and is listed as another one.
    The driver lists every process that computes on the GPU: where none is called this one, and one alone holds as much
    as PyTorch has reserved, that is it.
    """
    if failure.this_process_bytes is not None or not failure.other_processes or not failure.reserved_bytes:
        return failure.this_process_bytes, failure.other_processes, False
    least = failure.reserved_bytes - failure.rounding_bytes
    large = [each for each in failure.other_processes if each.bytes >= least]
    if len(large) != 1:
        return None, failure.other_processes, False
    return large[0].bytes, tuple(each for each in failure.other_processes if each is not large[0]), True


def _shares(failure: GpuFailure) -> tuple[_Shares, list[str]]:
    this, others, found = own_process(failure)
    listed = sum(each.bytes for each in others)
    reserved, notes = failure.reserved_bytes, []
    if found:
        notes.append("the process that the message lists is this one: in a container it does not know its own number")
    total, free = failure.total_bytes or 0, failure.free_bytes or 0
    rest = None if reserved is None else total - free - reserved
    if this is None or reserved is None:
        unknown = None if rest is None else max(rest - listed, 0)
        return _Shares(this, listed, None, None, unknown), notes
    outside, not_listed = max(this - reserved, 0), max(total - free - this - listed, 0)
    return _Shares(this, listed, outside, not_listed, not_listed), notes


def _room(failure: GpuFailure, free: int) -> tuple[int, bool]:
    """What could still be taken, and whether the limit of the process and not the GPU says so."""
    if failure.allowed_bytes is None or failure.reserved_bytes is None:
        return free, False
    left = failure.allowed_bytes - failure.reserved_bytes
    return (max(left, 0), True) if left < free else (free, False)


def _candidates(failure: GpuFailure, shares: _Shares, missing: int) -> list[tuple[Cause, int]]:
    """Causes and the bytes that each could have given up, the most first."""
    found = [
        (Cause.FRAGMENTATION, failure.unallocated_bytes or 0),
        (Cause.PRIVATE_POOLS, failure.private_pool_bytes),
        (Cause.OTHER_PROCESS, shares.others),
        (Cause.OUTSIDE_ALLOCATOR, (shares.outside or 0) - CONTEXT_BYTES),
        (Cause.NOT_PYTORCH, (shares.not_pytorch or 0) - CONTEXT_BYTES),
    ]
    if failure.allowed_bytes is not None and _room(failure, failure.free_bytes or 0)[1]:
        found = found[:2]  # nobody else counts against the limit
    least = max(missing, 1)
    return sorted(((cause, count) for cause, count in found if count >= least), key=lambda each: -each[1])


def _cause(
    failure: GpuFailure,
    total: int,
    tried: int,
    free: int,
    limited: bool,
    candidates: list[tuple[Cause, int]],
    missing: int,
) -> Cause:
    most = min(total, failure.allowed_bytes or total)
    if tried > most + failure.rounding_bytes:
        return Cause.SINGLE_REQUEST
    if not limited and free - tried > total // _UNUSABLE:
        return Cause.REFUSED
    large = [cause for cause, count in candidates if count * SMALLEST_SHARE >= most]
    if large:
        return large[0]
    unexplained = _unexplained(failure, total, free)
    if unexplained >= max(missing, 1) and unexplained * SMALLEST_SHARE >= most:
        return Cause.UNKNOWN
    return Cause.LIMIT if limited else Cause.FULL


def _unexplained(failure: GpuFailure, total: int, free: int) -> int:
    """Neither free nor allocated, where the form does not say what is reserved (cudaMallocAsync)."""
    return 0 if failure.reserved_bytes is not None else total - free - (failure.allocated_bytes or 0) - CONTEXT_BYTES


def _held(failure: GpuFailure, shares: _Shares, free: int) -> dict[str, int]:
    said = {
        "free": free,
        "pytorch_allocated": (failure.allocated_bytes or 0) - failure.private_pool_bytes,
        "pytorch_private_pools": failure.private_pool_bytes or None,
        "pytorch_unallocated": failure.unallocated_bytes,
        "outside_allocator": shares.outside,
        "other_processes": shares.others or None,
        "not_listed" if shares.this is not None else "not_pytorch": shares.not_pytorch,
        "not_told": _unexplained(failure, failure.total_bytes or 0, free) + CONTEXT_BYTES
        if failure.reserved_bytes is None
        else None,
    }
    return {name: count for name, count in said.items() if count is not None}


def _contradictions(failure: GpuFailure, shares: _Shares, total: int, free: int) -> Iterator[str]:
    off = failure.rounding_bytes
    reserved, allocated = failure.reserved_bytes, failure.allocated_bytes or 0
    if max(reserved or 0, allocated) > total + off:
        yield (
            f"PyTorch holds {size(max(reserved or 0, allocated))} of a GPU of {size(total)}: the driver lends "
            f"memory of "
            "the host (Windows, WSL), which is slow"
        )
    elif reserved is not None and reserved + free > total + off:
        yield f"reserved {size(reserved)} and free {size(free)} are more than the GPU's {size(total)}"
    if reserved is not None and reserved < allocated - off:
        yield f"less is reserved ({size(reserved)}) than allocated ({size(allocated)})"
    if shares.this is not None and reserved is not None and shares.this < reserved - off:
        yield f"this process is said to hold {size(shares.this)}, and PyTorch has reserved {size(reserved)} in it"
    if shares.this is not None and shares.this + shares.others + free > total + off:
        yield f"the processes' {size(shares.this + shares.others)} and what is free are more than the GPU has"


def _cause_notes(cause: Cause, failure: GpuFailure, total: int, tried: int, free: int) -> Iterator[str]:
    if cause is Cause.REFUSED:
        yield (
            f"the driver says that {size(free)} are free, more than the {size(tried)} asked for: a limit that this "
            "message does not print stands between (set_per_process_memory_fraction before torch 2.2, Windows' "
            "or WSL's "
            "limit of a process, MIG, MPS), or another process gave memory back in the meantime"
        )
    if cause is Cause.UNKNOWN:
        yield (
            f"{size(_unexplained(failure, total, free) + CONTEXT_BYTES)} are neither free nor allocated: kept "
            f"by the pool "
            "of cudaMallocAsync, or by others; this form does not tell them apart"
        )
    if cause is not Cause.SINGLE_REQUEST and tried * 2 > total:
        yield f"this request alone is {tried / total:.0%} of the GPU".replace("%", " %")


def _outside_notes(failure: GpuFailure) -> Iterator[str]:
    who = {Form.NCCL: "NCCL", Form.LIBRARY: failure.who}.get(failure.form, "the driver, or a library,")
    yield f"{who} asked the driver itself, not PyTorch's allocator, and says nothing of who held what"
    yield "what PyTorch keeps in reserve is not free for others: nvidia-smi, or a snapshot, says how much that was"
    if failure.form is Form.DRIVER:
        yield "pinned memory of the host that cannot be had is said in the same words (cudaHostAlloc)"
    if failure.form is Form.LIBRARY:
        yield "the library says the same where it could not start for another reason (a wrong index, a broken driver)"


def _nothing(cause: Cause, failure: GpuFailure, *notes: str) -> Judgement:
    return Judgement(
        cause=cause,
        missing_bytes=failure.tried_bytes,
        held={},
        alone=(),
        contradictions=(),
        notes=notes,
    )
