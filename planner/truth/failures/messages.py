"""Finds and reads what a log says of running out of memory, on a GPU or on a host."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
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


# Forms: Linux 3.10 to 6.12 (mm/oom_kill.c, mm/memcontrol.c), Slurm 17.11 to 25.05 (slurmstepd, srun, sacct), the
# states of Kubernetes' containers, Ray 2 (its memory monitor), torch (c10/core/impl/alloc_cpu.cpp, DataLoader).
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


def _kernel(match: re.Match[str]) -> HostFailure:
    cause = Cause.HOST_LIMIT if match["of"].startswith("Memory cgroup") else Cause.HOST
    held = [int(each) for each in re.findall(r"(?:anon|file|shmem)-rss:(\d{1,15})kB", match["rest"] or "")]
    return _said("kernel", cause, match, process=match["process"], resident=sum(held) * KIB if held else None)


def _plainly(said_by: str, cause: Cause, *, certain: bool = True) -> Callable[[re.Match[str]], HostFailure]:
    return lambda match: _said(said_by, cause, match, certain=certain)


def _cpu_allocator(match: re.Match[str]) -> HostFailure:
    return _said("torch", Cause.HOST, match, requested=int(match["bytes"]))


def _said(
    said_by: str,
    cause: Cause,
    match: re.Match[str],
    *,
    process: str = "",
    resident: int | None = None,
    requested: int | None = None,
    certain: bool = True,
) -> HostFailure:
    return HostFailure(
        said_by=said_by,
        cause=cause,
        text=" ".join(match[0].split())[:_QUOTED_LINE],
        line=0,
        process=process,
        resident_bytes=resident,
        requested_bytes=requested,
        certain=certain,
    )


_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], HostFailure]], ...] = (
    (
        # Linux before 4.20 says in two lines what later ones say in one.
        re.compile(
            r"(?P<of>Memory cgroup out of memory|Out of memory)(?: \(oom_kill_allocating_task\))?: Kill(?:ed)? process"
            r" \d{1,10} \((?P<process>[^)\n]{0,64})\)"
            rf"(?P<rest>[^\n]{{0,{_LONGEST}}}(?:\n[^\n]{{0,60}}Killed process[^\n]{{0,{_LONGEST}}})?)"
        ),
        _kernel,
    ),
    (
        re.compile(
            r"Detected \d{1,6} oom[-_ ]kill event(?:s|\(s\))? in (?:StepId=|step )[\w.]{1,40}(?: cgroup)?\."
            rf"[^\n]{{0,{_LONGEST}}}"
        ),
        _plainly("slurm", Cause.HOST_LIMIT),
    ),
    (
        re.compile(r"srun: error: [^\n:]{1,100}: tasks? [\d,-]{1,100}: Out Of Memory"),
        _plainly("slurm", Cause.HOST_LIMIT),
    ),
    (re.compile(r"\bOUT_OF_ME(?:MORY\b|\+|\b)"), _plainly("slurm", Cause.HOST_LIMIT)),
    # Docker says of every container whether it was: "OOMKilled": false.
    (re.compile(r"\bOOMKilled\b(?!\"?\s?[:=]\s?\"?false)"), _plainly("kubernetes", Cause.HOST_LIMIT)),
    (
        re.compile(r"exit ?code\"?(?: is|:|=)? ?137\b|\bexited with code 137\b", re.IGNORECASE),
        _plainly("kubernetes", Cause.UNKNOWN, certain=False),
    ),
    (
        re.compile(r"(?:Task|Workers?)\b[^\n]{0,100}killed due to the node running low on memory"),
        _plainly("ray", Cause.HOST),
    ),
    (
        re.compile(
            r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate"
            r" (?P<bytes>\d{1,18}) bytes"
        ),
        _cpu_allocator,
    ),
    (re.compile(r"\b_?(?:Array)?MemoryError: [^\n]{0,100}"), _plainly("python", Cause.HOST)),
    (
        re.compile(r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,60}\) is killed by signal: Killed"),
        _plainly("torch", Cause.UNKNOWN, certain=False),
    ),
    (
        re.compile(r"out of shared memory\. Please try to raise your shared memory limit"),
        _plainly("torch", Cause.HOST_LIMIT),
    ),
)  # fmt: skip
_LIMIT = re.compile(r"memory: usage (\d{1,15})kB, limit (\d{1,15})kB")


def find_host_failures(text: str) -> list[HostFailure]:
    """Everything that is said of a host's memory, in the order of the text, equal words once."""
    lines = [0, *(match.end() for match in re.finditer("\n", text))]
    limits = [(match.start(), int(match[2]) * KIB) for match in _LIMIT.finditer(text)]
    found = sorted(_found(text), key=lambda each: each[0])
    seen: dict[tuple[str, str], HostFailure] = {}
    for at, said in found:
        before = bisect_right(limits, (at, 0)) - 1
        placed = HostFailure(
            said_by=said.said_by,
            cause=said.cause,
            text=said.text,
            line=bisect_right(lines, at),
            process=said.process,
            resident_bytes=said.resident_bytes,
            limit_bytes=limits[before][1] if before >= 0 and said.process and said.cause is Cause.HOST_LIMIT else None,
            requested_bytes=said.requested_bytes,
            certain=said.certain,
        )
        seen.setdefault((said.said_by, said.text), placed)
    return list(seen.values())


def _found(text: str) -> Iterator[tuple[int, HostFailure]]:
    for pattern, read in _FORMS:
        for match in pattern.finditer(text):
            yield match.start(), read(match)


_BACK = 64 * 1024
"""Characters before a message in which its traceback is looked for."""
_MOST_FRAMES = 100
_LONGEST_PREFIX = 300
"""Characters before a message on its line, in which a rank is looked for."""
_FRAME = re.compile(r'File "(?P<file>[^"\n]{1,500})", line (?P<line>\d{1,9}), in (?P<function>[^\n]{1,200})')
_BEGIN = "Traceback (most recent call last)"
_RANK = re.compile(r"\[rank(\d{1,7})\]:|\brank[ =](\d{1,7})\b|\(VllmWorker[^)\n]*rank=(\d{1,7})")


def frames_before(text: str, at: int) -> tuple[Frame, ...]:
    """The frames of the traceback that ends with what stands at `at`, outermost first; none where there is none."""
    before = text[max(0, at - _BACK) : at]
    begin = before.rfind(_BEGIN)
    if begin < 0:
        return ()
    found = [
        Frame(match["file"], int(match["line"]), match["function"].strip()) for match in _FRAME.finditer(before, begin)
    ]
    return tuple(found[-_MOST_FRAMES:])


def rank_of(text: str, at: int) -> int | None:
    """The rank that the line itself names, as torchrun's and vLLM's prefixes do."""
    start = text.rfind("\n", max(0, at - _LONGEST_PREFIX), at) + 1 or max(0, at - _LONGEST_PREFIX)
    match = _RANK.search(text, start, at)
    return int(next(group for group in match.groups() if group)) if match else None


def innermost_own(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost line outside of torch's own files; the innermost of all where there is no other."""
    own = [each for each in frames if "/torch/" not in each.file.replace("\\", "/")]
    return next(reversed(own or frames), None)


# torch's forms are those of c10/cuda/CUDACachingAllocator.cpp (and its ROCm translation) and
# c10/cuda/CUDAMallocAsyncAllocator.cpp between 1.0 and 2.13:
#
# - 1.0 to 1.3 in brackets, with `cached`, which leaves out what is allocated; - 1.4 to 2.0 the same with `reserved in
# total by PyTorch`, which does not, and since 1.8 with `allowed`; - 2.1 in sentences, with the processes that the
# driver knows on the GPU, and a misspelled `capacty`; - 2.2 the same, advising `expandable_segments`; since 2.4 with
# the private pools of CUDA graphs, since 2.9 with `PYTORCH_ALLOC_CONF` in its advice.
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
_FIGURES = ("tried", "total", "free", "allocated", "allowed")


def find_messages(text: str) -> list[GpuFailure]:
    """Every message in the text, in its order, at most MOST_MESSAGES and equal ones of a rank once; what begins as one
    and goes on in no known form is there with the form UNKNOWN."""
    figured = sorted(_figured(text), key=lambda each: each[0].start())
    found = {match.start(): failure for match, failure in figured}
    ends = [(match.start(), match.end()) for match, _ in figured]
    for form, who, pattern in _WITHOUT_FIGURES:
        for match in pattern.finditer(text):
            before = bisect_right(ends, (match.start(), len(text))) - 1
            if before < 0 or match.start() >= ends[before][1]:
                found[match.start()] = _unfigured(form, who, match)
    for match in _BEGUN.finditer(text):
        if match.start() not in found:
            found[match.start()] = GpuFailure(form=Form.UNKNOWN, text=_beginning(text, match.start()), line=0)
    return _placed(text, found)


def _placed(text: str, found: Mapping[int, GpuFailure]) -> list[GpuFailure]:
    """A log says the same again and again: in the traceback, in the launcher's summary, and once for the driver."""
    lines = [0, *(match.end() for match in re.finditer("\n", text))]
    seen: dict[tuple[object, ...], GpuFailure] = {}
    for at in sorted(found):
        each, rank = found[at], rank_of(text, at)
        key = (each.form, each.text, rank)
        if key in seen:
            continue
        seen[key] = replace(each, line=bisect_right(lines, at), rank=rank, frames=frames_before(text, at))
        if len(seen) == MOST_MESSAGES:
            break
    return list(seen.values())


def _figured(text: str) -> Iterator[tuple[re.Match[str], GpuFailure]]:
    for match in _IN_BRACKETS.finditer(text):
        yield match, _in_brackets(match)
    for match in _IN_SENTENCES.finditer(text):
        yield match, _in_sentences(match)
    for match in _ASYNC.finditer(text):
        yield match, _common(Form.ASYNC, match)


def _in_brackets(match: re.Match[str]) -> GpuFailure:
    said = _common(Form.RESERVED, match)
    rest, _ = _figure(match, "rest")
    if match["of_rest"] == "cached":
        return replace(said, form=Form.CACHED, reserved_bytes=(said.allocated_bytes or 0) + rest)
    return replace(said, reserved_bytes=rest)


def _in_sentences(match: re.Match[str]) -> GpuFailure:
    said = _common(_form_by_advice(match), match)
    rest, _ = _figure(match, "rest")
    pools = _figure(match, "pools")[0] if match["pools"] else 0
    this: int | None = None
    others: list[ProcessBytes] = []
    off = 0
    for each in _PROCESS.finditer(match["processes"] or ""):
        held, half = _figure(each, "held")
        off += half if held < _NOT_KNOWN_BYTES else 0
        if each["process"] is None:
            this = held if held < _NOT_KNOWN_BYTES else None
        elif held < _NOT_KNOWN_BYTES:
            others.append(ProcessBytes(int(each["process"]), held))
    return replace(
        said,
        reserved_bytes=(said.allocated_bytes or 0) + rest,
        private_pool_bytes=pools,
        this_process_bytes=this or None,
        other_processes=tuple(others),
        rounding_bytes=said.rounding_bytes + off,
    )


def _form_by_advice(match: re.Match[str]) -> Form:
    if match["capacity"] == "capacty":
        return Form.PROCESSES
    return Form.ALLOC_CONF if re.search(r"PYTORCH_ALLOC_CONF", match["advice"] or "") else Form.EXPANDABLE


def _common(form: Form, match: re.Match[str]) -> GpuFailure:
    values: dict[str, int] = {}
    off = 0
    for name in (*_FIGURES, "rest"):
        if match.groupdict().get(name) is None:
            continue
        count, half = _figure(match, name)
        if count < _NOT_KNOWN_BYTES:
            off += half
            values[name] = count
    text = " ".join(match[0].split())
    return GpuFailure(
        form=form,
        text=text[:_QUOTED],
        line=0,
        device=int(match["device"]),
        tried_bytes=values.get("tried"),
        total_bytes=values.get("total"),
        free_bytes=values.get("free"),
        allocated_bytes=values.get("allocated"),
        allowed_bytes=values.get("allowed"),
        rounding_bytes=off,
    )


def _unfigured(form: Form, who: str, match: re.Match[str]) -> GpuFailure:
    groups: Mapping[str, str | None] = match.groupdict()
    tried = _figure(match, "tried")[0] if groups.get("tried") else None
    said = " ".join(match[0].splitlines()[0].split())
    return GpuFailure(form=form, text=said[:_QUOTED], line=0, who=groups.get("who") or who, tried_bytes=tried)


def _figure(match: re.Match[str], name: str) -> tuple[int, int]:
    """Bytes, and half of the last printed digit."""
    unit = _UNITS[match[f"{name}_unit"]]
    written = match[name]
    whole, _, decimals = written.partition(".")
    count = int(whole + decimals) * unit // 10 ** len(decimals)
    return count, unit // (2 * 10 ** len(decimals)) if decimals else 0


def _beginning(text: str, at: int) -> str:
    return " ".join(text[at : at + _BEGINNING].split("\n\n")[0].split())
