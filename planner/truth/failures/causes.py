"""Why a request failed, from the figures of its message: arithmetic only, and what does not add up is said.

What was missing is what was asked for less what was free. A cause is named if it alone would have sufficed and holds
at least a tenth of the GPU; of several the largest is named, and the others are told. Otherwise the GPU was full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from planner.hardware.gpus import GPUS
from planner.report.style import size
from planner.truth.failures.messages import Cause, Form, GpuFailure, ProcessBytes
from planner.units import MIB

SMALLEST_SHARE = 10
"""A part of the GPU that is smaller than one in so many is not called the cause: the next request would have failed."""
_UNUSABLE = 100
"""One part in so many of the GPU may be free and yet refused. Seen: 10 MiB of 4 GiB (Synthintel0/MyGirlGPT#11), 10 MiB
of 7.75 GiB (vllm-project/vllm#12529), 72 MiB of 10.76 GiB (RenYurui/StructureFlow#35)."""
ONE_EXABYTE = 1 << 60
"""Beyond it torch refuses a request without looking at the GPU (c10/cuda/CUDACachingAllocator.cpp, one_exa_bytes)."""
CONTEXT_BYTES = max(gpu.context.largest for gpu in GPUS if gpu.context is not None) * MIB
"""What a bare CUDA context takes at most, of the GPUs on which it was measured: nobody can give it up."""


_WORDS_OF = {
    "XPU": ("oneCCL", "oneAPI's", "xpu-smi", "sycl::malloc_host"),
    "HIP": ("RCCL", "ROCm's", "rocm-smi", "hipHostMalloc"),
    "NPU": ("HCCL", "CANN's", "npu-smi", "aclrtMallocHost"),
    "MUSA": ("MCCL", "MUSA's", "mthreads-gmi", "musaHostAlloc"),
}
"""What other vendors call NCCL, CUDA's libraries, nvidia-smi and cudaHostAlloc."""


def in_words_of(vendor: str, text: str) -> str:
    """A hint with the names of the vendor's libraries and tools; CUDA's for any other."""
    for ours, theirs in zip(("NCCL", "CUDA's", "nvidia-smi", "cudaHostAlloc"), _WORDS_OF.get(vendor, ()), strict=False):
        text = text.replace(ours, theirs)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """`held` says who held what, in bytes, as far as the message tells; `alone` are the causes without which it would
    have fitted, each by itself."""

    cause: Cause
    missing_bytes: int | None
    held: Mapping[str, int] = field(default_factory=dict)
    alone: tuple[Cause, ...] = ()
    contradictions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def judge(failure: GpuFailure) -> Judgement:
    """The cause, and what it stands on."""
    total, tried, free = failure.total_bytes, failure.tried_bytes, failure.free_bytes
    allocated, reserved = failure.allocated_bytes, failure.reserved_bytes
    if failure.form is Form.MPS:
        return _judge_metal(failure)
    if total is None or tried is None or allocated is None:
        return _judge_without_figures(failure)
    if free is None:
        return _judge_without_free(tried, total, allocated, failure)
    this_process, others, in_container = _own_process(failure)
    candidates = _candidates(failure) if this_process is None else []
    listed = sum(process.bytes for process in others)
    # Where several of those that are listed may be this one, others hold at least the rest.
    surely_others = listed - max((process.bytes for process in candidates), default=0)
    if candidates:
        listed = 0
    outside = unlisted = None
    if reserved is not None:
        outside = None if this_process is None else max(this_process - reserved, 0)
        unlisted = max(total - free - (reserved if this_process is None else this_process) - listed, 0)
    room, limited = free, False
    if failure.allowed_bytes is not None and reserved is not None and failure.allowed_bytes - reserved < free:
        room, limited = max(failure.allowed_bytes - reserved, 0), True
    missing = max(tried - room, 0)
    could_give_up = [
        (Cause.FRAGMENTATION, failure.unallocated_bytes or 0),
        (Cause.PRIVATE_POOLS, failure.private_pool_bytes),
    ]
    if not limited:  # nobody else counts against the limit
        could_give_up += [
            (Cause.OTHER_PROCESS, surely_others),
            (Cause.OUTSIDE_ALLOCATOR, (outside or 0) - CONTEXT_BYTES),
            (Cause.NOT_PYTORCH, (unlisted or 0) - CONTEXT_BYTES),
        ]
    sufficient = [(cause, count) for cause, count in could_give_up if count >= max(missing, 1)]
    if candidates and any(cause is Cause.OTHER_PROCESS for cause, _ in sufficient):  # what is not PyTorch's includes it
        sufficient = [row for row in sufficient if row[0] is not Cause.NOT_PYTORCH]
    sufficient.sort(key=lambda candidate: -candidate[1])
    # Neither free nor allocated, where the form does not say what is reserved (cudaMallocAsync).
    not_told = None if reserved is not None else total - free - allocated
    unexplained = 0 if not_told is None else not_told - CONTEXT_BYTES
    most = min(total, failure.allowed_bytes or total)
    large = [cause for cause, count in sufficient if count * SMALLEST_SHARE >= most]
    tensors = max(allocated - failure.private_pool_bytes, 0)
    cause = Cause.FULL if tensors * SMALLEST_SHARE >= most else Cause.SINGLE_REQUEST
    if limited:
        cause = Cause.LIMIT
    if tried > most + failure.rounding_bytes:
        cause = Cause.SINGLE_REQUEST
    elif not limited and free - tried > total // _UNUSABLE:
        cause = Cause.REFUSED
    elif large:
        cause = large[0]
    elif unexplained >= max(missing, 1) and unexplained * SMALLEST_SHARE >= most:
        cause = Cause.UNKNOWN
    held = {
        "free": free,
        "pytorch_allocated": tensors,
        "pytorch_private_pools": failure.private_pool_bytes or None,
        "pytorch_unallocated": failure.unallocated_bytes,
        "outside_allocator": outside,
        "other_processes": listed or None,
        "not_listed" if this_process is not None else "not_pytorch": unlisted,
        "not_told": not_told,
    }
    notes = [*_notes_on(cause, total, tried, free, not_told or 0)]
    if in_container:
        notes.insert(
            0, "the process that the message lists is this one: in a container it does not know its own number"
        )
    if candidates:
        notes.insert(
            0,
            f"which of the listed processes is this one is not said ({len(candidates)} hold as much as PyTorch has "
            f"reserved): others hold at least {size(surely_others)}",
        )
    return Judgement(
        cause=cause,
        missing_bytes=missing,
        held={name: count for name, count in held.items() if count is not None},
        alone=tuple(cause for cause, _ in sufficient) if missing else (),
        contradictions=tuple(_contradictions(failure, this_process, sum(each.bytes for each in others), total, free)),
        notes=tuple(notes),
    )


def _judge_metal(failure: GpuFailure) -> Judgement:
    """Metal's limit is one of the process: a share of the machine's memory."""
    allocated, tried, allowed = failure.allocated_bytes or 0, failure.tried_bytes, failure.allowed_bytes
    other = max((failure.this_process_bytes or 0) - allocated, 0)
    missing = None if tried is None or allowed is None else max(tried + allocated + other - allowed, 0)
    cause = Cause.LIMIT
    if allowed is None:
        cause = Cause.UNKNOWN
    elif tried is not None and tried > allowed:
        cause = Cause.SINGLE_REQUEST
    elif other > allocated and other * SMALLEST_SHARE >= allowed:
        cause = Cause.OUTSIDE_ALLOCATOR
    return Judgement(
        cause=cause,
        missing_bytes=missing,
        held={"pytorch_allocated": allocated, "outside_allocator": other} if allowed is not None else {},
    )


def _judge_without_figures(failure: GpuFailure) -> Judgement:
    """What was asked for may be told; whose memory it was is not."""
    tried, total, free = failure.tried_bytes, failure.total_bytes, failure.free_bytes
    if tried is not None and tried >= (total or ONE_EXABYTE):
        return Judgement(cause=Cause.SINGLE_REQUEST, missing_bytes=tried)
    if failure.form in (Form.NCCL, Form.LIBRARY, Form.DRIVER):
        notes = tuple(in_words_of(failure.vendor, note) for note in _notes_without_figures(failure))
        return Judgement(cause=Cause.OUTSIDE_ALLOCATOR, missing_bytes=tried, notes=notes)
    if failure.form is Form.FRAMEWORK and failure.who.startswith("the engine's share"):
        note = "weights and activations leave too little of the share that the engine may take for its KV cache"
        return Judgement(cause=Cause.LIMIT, missing_bytes=tried, notes=(note,))
    if failure.form is Form.FRAMEWORK and None not in (tried, total, free):
        note = "what is missing was taken before this process asked for anything: by others, or by an earlier process"
        return Judgement(
            cause=Cause.OTHER_PROCESS,
            missing_bytes=max((tried or 0) - (free or 0), 0),
            held={"free": free or 0, "other_processes": max((total or 0) - (free or 0), 0)},
            notes=(note, "the CUDA context of this process is counted with the others'"),
        )
    note = "it says that GPU memory ran out, and not who held what"
    if failure.who == "NVML":
        note = (
            "torch asks NVML who holds the GPU's memory only where a request has failed, and NVML failed too: memory "
            "of the GPU ran out, and who held what is not said"
        )
    if failure.form is Form.UNKNOWN:
        note = "it begins as a message of being out of memory, and does not say who held what in words that are known"
    return Judgement(cause=Cause.UNKNOWN, missing_bytes=tried, notes=(note,))


def _judge_without_free(tried: int, total: int, allocated: int, failure: GpuFailure) -> Judgement:
    """A form that does not tell what was free: more follows only where tensors and the request exceed the GPU."""
    unallocated = failure.unallocated_bytes
    held = {"pytorch_allocated": allocated, "not_told": max(total - allocated - (unallocated or 0), 0)}
    if unallocated is not None:
        held["pytorch_unallocated"] = unallocated
    if tried > min(total, failure.allowed_bytes or total):
        return Judgement(cause=Cause.SINGLE_REQUEST, missing_bytes=None, held=held)
    if allocated + tried > total:
        cause = Cause.FULL if allocated * SMALLEST_SHARE >= total else Cause.SINGLE_REQUEST
        return Judgement(cause=cause, missing_bytes=None, held=held)
    note = "this form does not say what was free, so no cause follows from it"
    return Judgement(cause=Cause.UNKNOWN, missing_bytes=None, held=held, notes=(note,))


def _own_process(failure: GpuFailure) -> tuple[int | None, tuple[ProcessBytes, ...], bool]:
    """What this process holds, the others, and whether it had to be found among them.

    A process in a container does not know the number under which the driver lists it, and is listed as another one.
    The driver lists every process that computes on the GPU: where none is called this one, and one alone holds as much
    as PyTorch has reserved, that is it.
    """
    this_process, others = failure.this_process_bytes, failure.other_processes
    if this_process is not None or not others or not failure.reserved_bytes:
        return this_process, others, False
    large = _candidates(failure)
    if len(large) != 1:
        return None, others, False
    return large[0].bytes, tuple(process for process in others if process is not large[0]), True


def _candidates(failure: GpuFailure) -> list[ProcessBytes]:
    """Those of the listed processes that may be this one: they hold at least what PyTorch has reserved."""
    least = (failure.reserved_bytes or 0) - failure.rounding_bytes
    return [process for process in failure.other_processes if process.bytes >= least > 0]


def _contradictions(failure: GpuFailure, this_process: int | None, listed: int, total: int, free: int) -> Iterator[str]:
    off = failure.rounding_bytes
    reserved, allocated = failure.reserved_bytes, failure.allocated_bytes or 0
    held = max(reserved or 0, allocated)
    if held > total + off:
        yield (
            f"PyTorch holds {size(held)} of a GPU of {size(total)}: the driver lends memory of the host (Windows, "
            "WSL), which is slow"
        )
    elif reserved is not None and reserved + free > total + off:
        yield f"reserved {size(reserved)} and free {size(free)} are more than the GPU's {size(total)}"
    if reserved is not None and reserved < allocated - off:
        yield f"less is reserved ({size(reserved)}) than allocated ({size(allocated)})"
    if this_process is not None and reserved is not None and this_process < reserved - off:
        yield f"this process is said to hold {size(this_process)}, and PyTorch has reserved {size(reserved)} in it"
    # Where no process is known to be this one, it is one that is listed if any can be.
    own = this_process if this_process is not None else 0 if _candidates(failure) else held
    if (listed or this_process is not None) and own + listed + free > total + off:
        yield f"the processes' {size(own + listed)} and what is free are more than the GPU has"
    if failure.private_pool_bytes > allocated + off:
        yield f"private pools hold {size(failure.private_pool_bytes)} of {size(allocated)} allocated"


def _notes_on(cause: Cause, total: int, tried: int, free: int, not_told: int) -> Iterator[str]:
    if cause is Cause.REFUSED:
        yield (
            f"the driver says that {size(free)} are free, more than the {size(tried)} asked for: a limit that this "
            "message does not print stands between (set_per_process_memory_fraction before torch 2.2, Windows' or "
            "WSL's limit of a process, MIG, MPS), or another process gave memory back in the meantime"
        )
    if cause is Cause.UNKNOWN:
        yield (
            f"{size(not_told)} are neither free nor allocated: kept by the pool of cudaMallocAsync, or by others; "
            "this form does not tell them apart"
        )
    if cause is not Cause.SINGLE_REQUEST and tried * 2 > total:
        yield f"this request alone is {tried / total:.0%} of the GPU".replace("%", " %")


def _notes_without_figures(failure: GpuFailure) -> Iterator[str]:
    who = {Form.NCCL: "NCCL", Form.LIBRARY: failure.who}.get(failure.form, "the driver, or a library,")
    yield f"{who} asked the driver itself, not PyTorch's allocator, and says nothing of who held what"
    yield "what PyTorch keeps in reserve is not free for others: nvidia-smi, or a snapshot, says how much that was"
    if failure.form is Form.DRIVER:
        yield "pinned memory of the host that cannot be had is said in the same words (cudaHostAlloc)"
    if failure.who == "bitsandbytes" and "pythonInterface" in failure.text:
        yield "it asked for managed memory (a paged optimizer's states), which the host's memory holds as well"
    elif failure.form is Form.LIBRARY:
        yield "the library says the same where it could not start for another reason (a wrong index, a broken driver)"
