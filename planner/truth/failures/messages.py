"""Finds and reads what a log says of running out of memory, on a GPU or on a host."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from planner.units import GIB, KIB, MIB


class Form(StrEnum):
    """The forms in which being out of GPU memory has been said; the value names who says it, and since when."""

    CACHED = "torch 1.0 to 1.3"
    RESERVED = "torch 1.4 to 2.0"
    PROCESSES = "torch 2.1"
    EXPANDABLE = "torch 2.2 to 2.8"
    ALLOC_CONF = "torch 2.9 and later"
    ASYNC = "torch with backend:cudaMallocAsync"
    DRIVER = "the driver"
    NCCL = "NCCL"
    LIBRARY = "a CUDA library"
    UNKNOWN = "unknown"


class Cause(StrEnum):
    """Why memory ran out. The last two are of a host's memory, all others of a GPU's."""

    SINGLE_REQUEST = "single_request"
    """More was asked for at once than the process may ever have."""
    LIMIT = "limit"
    """`set_per_process_memory_fraction`, and not the GPU, was full."""
    FRAGMENTATION = "fragmentation"
    """PyTorch had reserved enough that was in no tensor, in pieces that did not fit."""
    PRIVATE_POOLS = "private_pools"
    """What CUDA graphs or MemPools keep for themselves would have sufficed."""
    OTHER_PROCESS = "other_process"
    OUTSIDE_ALLOCATOR = "outside_allocator"
    """This process, but not PyTorch's allocator: NCCL, CUDA libraries, other frameworks."""
    NOT_PYTORCH = "not_pytorch"
    """One of the two before; the message does not tell them apart."""
    FULL = "full"
    """PyTorch's own tensors."""
    REFUSED = "refused"
    """The driver says that there was room: a limit that the message does not print."""
    UNKNOWN = "unknown"
    HOST_LIMIT = "host_limit"
    """The limit of a cgroup: a container, a Slurm step."""
    HOST = "host"
    """The whole machine's memory."""

    @property
    def of_host(self) -> bool:
        return self in (Cause.HOST_LIMIT, Cause.HOST)


@dataclass(frozen=True, slots=True)
class ProcessBytes:
    """What the driver says that another process holds on the GPU."""

    process: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a Python traceback."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFailure:
    """One failed request. All figures are bytes; None is what the form does not tell, or the driver did not know."""

    form: Form
    text: str
    """The beginning of what was read."""
    line: int
    """Where it stands in the text, from 1."""
    rank: int | None = None
    device: int | None = None
    tried_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    private_pool_bytes: int = 0
    """Free, in the pools of CUDA graphs; the message counts them as allocated."""
    allowed_bytes: int | None = None
    this_process_bytes: int | None = None
    other_processes: tuple[ProcessBytes, ...] = ()
    rounding_bytes: int = 0
    """By how much sums of the figures may be off, as they were printed with two decimals."""
    who: str = ""
    """Which library asked, where it was not torch's allocator."""
    frames: tuple[Frame, ...] = ()
    """The Python traceback around it, outermost first."""

    @property
    def unallocated_bytes(self) -> int | None:
        """Reserved by PyTorch, in no block and in no private pool."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return self.reserved_bytes - self.allocated_bytes


_QUOTED_LINE = 300
_LONGEST = 300
"""Characters of a line in which the words of one event stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFailure:
    """One thing that was said of a host's memory. Bytes are None where the words hold none."""

    said_by: str
    """kernel, slurm, kubernetes, ray, python, torch"""
    cause: Cause
    text: str
    line: int
    process: str = ""
    """The name of what was killed."""
    resident_bytes: int | None = None
    """What it held: anonymous, file-backed and shared pages."""
    limit_bytes: int | None = None
    requested_bytes: int | None = None
    certain: bool = True
    """False where the same words are said of other ends too."""


# Linux before 4.20 says in two lines what later ones say in one.
_KILLED = (
    r"(?: \(oom_kill_allocating_task\))?: Kill(?:ed)? process \d{1,10} \((?P<process>[^)\n]{0,64})\)"
    rf"(?P<pages>[^\n]{{0,{_LONGEST}}}(?:\n[^\n]{{0,60}}Killed process[^\n]{{0,{_LONGEST}}})?)"
)
_SAID_OF_HOSTS = tuple(
    (re.compile(pattern), said_by, cause)
    for pattern, said_by, cause in (
        ("Memory cgroup out of memory" + _KILLED, "kernel", Cause.HOST_LIMIT),
        ("Out of memory" + _KILLED, "kernel", Cause.HOST),
        (
            r"Detected \d{1,6} oom[-_ ]kill event(?:s|\(s\))? in (?:StepId=|step )[\w.]{1,40}(?: cgroup)?\."
            rf"[^\n]{{0,{_LONGEST}}}",
            "slurm",
            Cause.HOST_LIMIT,
        ),
        (r"srun: error: [^\n:]{1,100}: tasks? [\d,-]{1,100}: Out Of Memory", "slurm", Cause.HOST_LIMIT),
        (r"\bOUT_OF_ME(?:MORY\b|\+|\b)", "slurm", Cause.HOST_LIMIT),
        # Docker says of every container whether it was: "OOMKilled": false.
        (r"\bOOMKilled\b(?!\"?\s?[:=]\s?\"?false)", "kubernetes", Cause.HOST_LIMIT),
        (r"(?i:exit ?code\"?(?: is|:|=)? ?137\b|\bexited with code 137\b)", "kubernetes", Cause.UNKNOWN),
        (r"(?:Task|Workers?)\b[^\n]{0,100}killed due to the node running low on memory", "ray", Cause.HOST),
        (
            r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate"
            r" (?P<requested>\d{1,18}) bytes",
            "torch",
            Cause.HOST,
        ),
        (r"\b_?(?:Array)?MemoryError: [^\n]{0,100}", "python", Cause.HOST),
        (r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,60}\) is killed by signal: Killed", "torch", Cause.UNKNOWN),
        (r"out of shared memory\. Please try to raise your shared memory limit", "torch", Cause.HOST_LIMIT),
    )
)
"""Linux 3.10 to 6.12 (mm/oom_kill.c, mm/memcontrol.c), Slurm 17.11 to 25.05 (slurmstepd, srun, sacct), the states of
Kubernetes' containers, Ray 2 (its memory monitor), torch (c10/core/impl/alloc_cpu.cpp, DataLoader)."""
_LIMIT = re.compile(r"memory: usage (\d{1,15})kB, limit (\d{1,15})kB")


def find_host_failures(text: str) -> list[HostFailure]:
    """Everything that is said of a host's memory, in the order of the text, equal words once."""
    line_starts = _line_starts(text)
    limits = [(match.start(), int(match[2]) * KIB) for match in _LIMIT.finditer(text)]
    matches = [
        (match, said_by, cause) for pattern, said_by, cause in _SAID_OF_HOSTS for match in pattern.finditer(text)
    ]
    failures: dict[tuple[str, str], HostFailure] = {}
    for match, said_by, cause in sorted(matches, key=lambda row: row[0].start()):
        groups: Mapping[str, str | None] = match.groupdict()
        process, requested = groups.get("process") or "", groups.get("requested")
        pages = re.findall(r"(?:anon|file|shmem)-rss:(\d{1,15})kB", groups.get("pages") or "")
        limit = bisect_right(limits, (match.start(), 0)) - 1
        failure = HostFailure(
            said_by=said_by,
            cause=cause,
            text=" ".join(match[0].split())[:_QUOTED_LINE],
            line=bisect_right(line_starts, match.start()),
            process=process,
            resident_bytes=sum(map(int, pages)) * KIB if pages else None,
            limit_bytes=limits[limit][1] if limit >= 0 and process and cause is Cause.HOST_LIMIT else None,
            requested_bytes=None if requested is None else int(requested),
            certain=cause is not Cause.UNKNOWN,
        )
        failures.setdefault((said_by, failure.text), failure)
    return list(failures.values())


def _line_starts(text: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", text))]


_BACK = 64 * 1024
"""Characters before a message in which its traceback is looked for."""
_MOST_FRAMES = 100
_LONGEST_PREFIX = 300
"""Characters before a message on its line, in which a rank is looked for."""
_FRAME = re.compile(r'File "(?P<file>[^"\n]{1,500})", line (?P<line>\d{1,9}), in (?P<function>[^\n]{1,200})')
_BEGIN = "Traceback (most recent call last)"
_RANK = re.compile(r"\[rank(\d{1,7})\]:|\brank[ =](\d{1,7})\b|\(VllmWorker[^)\n]*rank=(\d{1,7})")


def _frames_before(text: str, at: int) -> tuple[Frame, ...]:
    """The frames of the traceback that ends with what stands at `at`, outermost first."""
    before = text[max(0, at - _BACK) : at]
    begin = before.rfind(_BEGIN)
    if begin < 0:
        return ()
    frames = [
        Frame(match["file"], int(match["line"]), match["function"].strip()) for match in _FRAME.finditer(before, begin)
    ]
    return tuple(frames[-_MOST_FRAMES:])


def _rank_before(text: str, at: int) -> int | None:
    """The rank that the line itself names, as torchrun's and vLLM's prefixes do."""
    start = text.rfind("\n", max(0, at - _LONGEST_PREFIX), at) + 1 or max(0, at - _LONGEST_PREFIX)
    # Of a line without end every message looks back over the same characters: a plain search first is 50 times faster.
    match = _RANK.search(text, start, at) if text.find("rank", start, at) >= 0 else None
    return int(next(group for group in match.groups() if group)) if match else None


def innermost_own(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost line outside of torch's own files; the innermost of all where there is no other."""
    own = [frame for frame in frames if "/torch/" not in frame.file.replace("\\", "/")]
    return next(reversed(own or frames), None)


# torch's forms are those of c10/cuda/CUDACachingAllocator.cpp (and its ROCm translation) and
# c10/cuda/CUDAMallocAsyncAllocator.cpp between 1.0 and 2.13:
#
# - 1.0 to 1.3 in brackets, with `cached`, which leaves out what is allocated;
# - 1.4 to 2.0 the same with `reserved in total by PyTorch`, which does not, and since 1.8 with `allowed`;
# - 2.1 in sentences, with the processes that the driver knows on the GPU, and a misspelled `capacty`;
# - 2.2 the same, advising `expandable_segments`; since 2.4 with the private pools of CUDA graphs, since 2.9 with
#   `PYTORCH_ALLOC_CONF` in its advice.
_UNITS = {"bytes": 1, "byte": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_NOT_KNOWN_BYTES = 1 << 62
"""2**64 - 1 is what NVML says where a driver does not tell (WSL, Windows), and what stands for no limit."""
_QUOTED = 1200
"""Characters of a message that are repeated: all of one with a dozen processes."""
_BEGINNING = 200
"""Characters of what goes on in no known form."""
MOST_MESSAGES = 1000
"""Of one log, that are told apart; each rank of a large job has one."""


def _size(name: str) -> str:
    return rf"(?P<{name}>\d{{1,18}}(?:\.\d{{1,9}})?)\s+(?P<{name}_unit>bytes|[KMG]iB)"


_HEAD = rf"(?:(?:CUDA|HIP|XPU)\s+o|\bO)ut of memory\.\s+Tried to allocate\s+{_size('tried')}"
_IN_BRACKETS = re.compile(
    rf"{_HEAD}\s+\(GPU\s+(?P<device>\d{{1,6}});\s+{_size('total')}\s+total capacity;\s+"
    rf"{_size('allocated')}\s+already allocated;\s+{_size('free')}\s+free;\s+(?:{_size('allowed')}\s+allowed;\s+)?"
    rf"{_size('rest')}\s+(?P<of_rest>cached|reserved in total by PyTorch)\)"
)
_IN_SENTENCES = re.compile(
    rf"{_HEAD}\.\s+GPU\s+(?P<device>\d{{1,6}})\s+has a total (?P<capacity>capacty|capacity) of\s+{_size('total')}"
    rf"(?:\s+of which\s+{_size('free')}\s+is free)?\.\s+(?P<processes>(?:(?:Process\s+\d{{1,10}}\s+has|Including"
    rf"\s+non-PyTorch\s+memory,\s+this process has|This process has)\s+\d[\d.]{{0,30}}\s+(?:bytes|[KMG]iB)"
    r"\s+memory in use\.\s+)*)"
    rf"(?:{_size('allowed')}\s+allowed;\s+)?Of the allocated memory\s+{_size('allocated')}\s+is allocated by PyTorch,"
    rf"\s+(?:with\s+{_size('pools')}\s+allocated in private pools \(e\.g\.,\s+CUDA Graphs\),\s+)?and\s+{_size('rest')}"
    rf"\s+is reserved by PyTorch but unallocated\.(?P<advice>[^\n]*)"
)
_ASYNC = re.compile(
    rf"Allocation on device\s+(?P<device>\d{{1,6}})\s+would exceed allowed memory\.\s+\(out of memory\)\s+"
    rf"Currently allocated\s*:\s*{_size('allocated')}\s+Requested\s*:\s*{_size('tried')}\s+"
    rf"Device limit\s*:\s*{_size('total')}\s+Free \(according to CUDA\)\s*:\s*{_size('free')}\s+"
    rf"PyTorch limit \(set by user-supplied memory fraction\)\s*:\s*{_size('allowed')}"
)
_PROCESS = re.compile(
    rf"(?:Process\s+(?P<process>\d{{1,10}})|this process|This process)\s+has\s+{_size('held')}\s+memory"
)
_BEGUN = re.compile(
    r"(?:(?:CUDA|HIP|XPU)\s+o|\bO)ut of memory\.\s+Tried to allocate|Allocation on device\s+\d+\s+would exceed"
)
_WITHOUT_FIGURES = (
    (Form.NCCL, "NCCL", re.compile(
        r"(?:Cuda|CUDA|HIP) failure (?:\d+ )?'out of memory'"
        rf"(?:[^\n]{{0,300}}\n(?:[^\n]{{0,300}}\n){{0,3}}?[^\n]{{0,300}}Failed to CUDA (?:c|m)alloc(?: async)?"
        rf" {_size('tried')})?"
    )),
    (Form.LIBRARY, "", re.compile(
        r"(?P<who>CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS|ROCBLAS)_STATUS_(?:ALLOC_FAILED|MEMORY_ERROR)"
    )),
    (Form.DRIVER, "", re.compile(
        r"(?:CUDA|HIP)(?: driver)? error: out of memory|cuda runtime error \(2\) ?: out of memory"
        r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory"
    )),
)  # fmt: skip


def find_messages(text: str) -> list[GpuFailure]:
    """Every message in the text, in its order, at most MOST_MESSAGES and equal ones of a rank once; what begins as one
    and goes on in no known form is there with the form UNKNOWN."""
    figured = [match for form in (_IN_BRACKETS, _IN_SENTENCES, _ASYNC) for match in form.finditer(text)]
    failures = {match.start(): _read_figures(match) for match in figured}
    spans = sorted(match.span() for match in figured)
    for form, who, pattern in _WITHOUT_FIGURES:
        for match in pattern.finditer(text):
            before = bisect_right(spans, (match.start(), len(text))) - 1
            if before >= 0 and match.start() < spans[before][1]:
                continue
            groups: Mapping[str, str | None] = match.groupdict()
            failures[match.start()] = GpuFailure(
                form=form,
                text=" ".join(match[0].splitlines()[0].split())[:_QUOTED],
                line=0,
                who=groups.get("who") or who,
                tried_bytes=_read_size(match, "tried")[0] if groups.get("tried") else None,
            )
    unknown: dict[str, GpuFailure] = {}  # the same words come often
    for match in _BEGUN.finditer(text):
        if match.start() not in failures:
            said = text[match.start() : match.start() + _BEGINNING]
            if said not in unknown:
                unknown[said] = GpuFailure(form=Form.UNKNOWN, text=" ".join(said.split("\n\n")[0].split()), line=0)
            failures[match.start()] = unknown[said]
    # A log says the same again and again: in the traceback, in the launcher's summary, and once for the driver.
    line_starts = _line_starts(text)
    different: dict[tuple[object, ...], GpuFailure] = {}
    for at, failure in sorted(failures.items()):
        rank = _rank_before(text, at)
        key = (failure.form, failure.text, rank)
        if key in different:
            continue
        line = bisect_right(line_starts, at)
        different[key] = replace(failure, line=line, rank=rank, frames=_frames_before(text, at))
        if len(different) == MOST_MESSAGES:
            break
    return list(different.values())


def _read_figures(match: re.Match[str]) -> GpuFailure:
    groups: Mapping[str, str | None] = match.groupdict()
    figures: dict[str, int] = {}
    rounding = 0
    for name in ("tried", "total", "free", "allocated", "allowed", "rest"):
        if groups.get(name) is None:
            continue
        count, half = _read_size(match, name)
        if count < _NOT_KNOWN_BYTES:
            rounding += half
            figures[name] = count
    this_process: int | None = None
    others: list[ProcessBytes] = []
    for process in _PROCESS.finditer(groups.get("processes") or ""):
        held, half = _read_size(process, "held")
        if held >= _NOT_KNOWN_BYTES:
            continue
        rounding += half
        if process["process"] is None:
            this_process = held
        else:
            others.append(ProcessBytes(int(process["process"]), held))
    reserved: int | None = None
    if groups.get("rest"):
        # What is "reserved in total" counts what is allocated; "cached" and "reserved but unallocated" do not.
        total = groups.get("of_rest") not in (None, "cached")
        reserved = _read_size(match, "rest")[0] + (0 if total else figures.get("allocated", 0))
    return GpuFailure(
        form=_form_of(groups),
        text=" ".join(match[0].split())[:_QUOTED],
        line=0,
        device=int(match["device"]),
        tried_bytes=figures.get("tried"),
        total_bytes=figures.get("total"),
        free_bytes=figures.get("free"),
        allocated_bytes=figures.get("allocated"),
        reserved_bytes=reserved,
        private_pool_bytes=_read_size(match, "pools")[0] if groups.get("pools") else 0,
        allowed_bytes=figures.get("allowed"),
        this_process_bytes=this_process or None,
        other_processes=tuple(others),
        rounding_bytes=rounding,
    )


def _form_of(groups: Mapping[str, str | None]) -> Form:
    if groups.get("of_rest"):
        return Form.CACHED if groups["of_rest"] == "cached" else Form.RESERVED
    if not groups.get("capacity"):
        return Form.ASYNC
    if groups["capacity"] == "capacty":
        return Form.PROCESSES
    return Form.ALLOC_CONF if "PYTORCH_ALLOC_CONF" in (groups["advice"] or "") else Form.EXPANDABLE


def _read_size(match: re.Match[str], name: str) -> tuple[int, int]:
    """Bytes, and half of the last printed digit."""
    unit = _UNITS[match[f"{name}_unit"]]
    whole, _, decimals = match[name].partition(".")
    count = int(whole + decimals) * unit // 10 ** len(decimals)
    return count, unit // (2 * 10 ** len(decimals)) if decimals else 0
