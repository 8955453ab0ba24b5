"""Finds in a text what is said of a host that ran out of memory: by the kernel, Slurm, Kubernetes, Ray, PyTorch.

Forms: Linux 3.10 to 6.12 (mm/oom_kill.c, mm/memcontrol.c), Slurm 17.11 to 25.05 (slurmstepd, srun, sacct), the states
of Kubernetes' containers, Ray 2 (its memory monitor), torch (c10/core/impl/alloc_cpu.cpp, DataLoader).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.out_of_memory.failure import Cause
from planner.units import KIB

_QUOTED = 300
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
        text=" ".join(match[0].split())[:_QUOTED],
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
