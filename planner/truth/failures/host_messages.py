"""Reads what a log says of a host's memory: who ended a process, what it held, and the limit.

Sources: Linux 3.10 to 6.12 (mm/oom_kill.c, mm/memcontrol.c), Slurm 17.11 to 25.05 (slurmstepd, srun, sacct), OpenPBS'
cgroup hook and MoM, LSF's bhist and bjobs, Grid Engine's execd, HTCondor's starter, kubelet's eviction manager and the
states of containers, Ray 2 (memory monitor, object store), torch (c10/core/impl/alloc_cpu.cpp, DataLoader, elastic),
NCCL's include/alloc.h.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping

from planner.truth.failures.log_text import LogText
from planner.truth.failures.messages import Cause, HostFailure
from planner.truth.failures.rules import Found, Lines, Rule, Words, apart, read_size
from planner.units import KIB, MIB

_QUOTED = 300
_CERTAIN = ("kernel", "systemd")
"""Who says that memory ran out, also where it does not say of what: the machine's, or a limit's."""


def _row(said_by: str, cause: Cause, pattern: str, unit: int = 1) -> Rule:
    return Rule(cause, said_by, Words(pattern), unit)


_KILLED = r"""(?:\(oom_kill_allocating_task\))?: Kill(?:ed)? process \d{1,10}\((?P<process>[^)]{0,64})\)
    (?P<pages>(?:(?![Oo]ut of memory|oom-kill|invoked oom).){0,300})"""


def _by_signal(number: int, name: str, said: str) -> str:
    """The ways in which launchers, shells and libraries say that a signal ended a process."""
    return rf"""Signal {number}\({name}\) received|Signals\.{name}: {number}
        |(?:exited on|(?:terminated|died) with|(?:terminated|killed) by|due to|received|on) (?:an?)? (?:uncaught)?
        (?:signal:?)? (?:{name}|{number}\({said}\)|{number}\({name}\)|signal {number}(?!\d)|{said}(?![a-z]))"""


def _exit_code(codes: str) -> str:
    return (
        r"(?i:\b(?:exit(?:ed)?|return(?:ed)?|finished|terminated|status)[ _-]?(?:with )?(?:a )?(?:non-?zero )?"
        r"(?:error |exit |return )?_?(?:code|status)?s?\"?\s{0,4}(?:is|of|:|=)?\s{0,4}\(?(?:" + codes + "))"
    )


# A row whose cause is UNKNOWN tells of an end that has other reasons too.
_SENTENCES = (
    _row("kernel", Cause.HOST_LIMIT, "Memory cgroup out of memory" + _KILLED),
    _row("kernel", Cause.HOST, "(?<!cgroup) [Oo]ut of memory" + _KILLED),
    _row("kernel", Cause.HOST_LIMIT, r"oom-kill: constraint= CONSTRAINT_MEMCG|mem_cgroup_out_of_memory\+"),
    _row(
        "kernel", Cause.HOST,
        r"oom-kill: constraint= CONSTRAINT_NONE|System OOM encountered, victim process: (?P<process>[^,]{1,64}),",
    ),
    _row(
        "systemd", Cause.HOST,
        r"""systemd-oomd[^:]{0,40}: Killed|systemd-oomd killed \d{0,6} (?:some)? process
        |earlyoom[^:]{0,40}: (?:low memory|sending SIG)""",
    ),
    _row("systemd", Cause.UNKNOWN, r"of this unit has been killed by the OOM killer|Failed with result 'oom-kill'"),
    _row(
        "slurm", Cause.HOST_LIMIT,
        r"""Detected \d{1,6} oom[-_]?kill (?:event(?:s|\(s\))?)? in (?:StepId=|step)[\w.]
        |(?:processes|step tasks) (?:may)? have been (?:killed by the cgroup out-of-memory handler|OOM Killed)
        |srun: error: [^:]{1,100}: tasks?[\d,-]{1,100}: Out Of Memory
        |Exceeded (?:job|step) memory limit
        |[Jj]ob[\d._]{1,40} exceeded @limit memory limit, being killed""",
    ),
    _row(
        "slurm", Cause.HOST_LIMIT,
        r"""(?:[Jj]ob|[Ss]tep)[\d._]{0,40}(?:\([\d.]{1,20}\))? exceeded (?:job|step)? (?:virtual)? memory limit
        (?:\(@used > @limit\))?""",
        KIB,
    ),
    _row("slurm", Cause.UNKNOWN, r"hit memory(?:\+swap)? limit at least once"),
    _row(
        "pbs", Cause.HOST_LIMIT,
        r"PBS: job killed: p?v?mem (?:job total)? @used exceeded limit @limit|[Cc]group mem(?:ory|sw)? limit exceeded"
        r"|[Jj]ob exceeded a memory resource limit",
    ),
    _row("pbs", Cause.HOST_LIMIT, r"exceeded (?:P?V?MEM|SWAP) usage (?:hard|soft) limit \(@used > @limit\)", MIB),
    _row("lsf", Cause.HOST_LIMIT, r"TERM_MEMLIMIT|TERM_SWAP|reaching LSF memory usage limit"),
    _row(
        "sge", Cause.HOST_LIMIT,
        r"""exceeds job (?:hard|soft) limit "[hs]_(?:vmem|rss|data)" (?:of queue "[^"]{1,100}")?
        \(@used > limit: @limit\)
        |execd enforced [hs]_(?:vmem|rss|data) limit""",
    ),
    _row(
        "condor", Cause.HOST_LIMIT,
        r"""[Jj]ob has (?:gone over|encountered an out-of-memory|exceeded)\w{0,20}? (?:memory limit of @limit|event)
        |killed by HTCondor due to excessive memory use (?:\(RSS=@used\))?
        |put on hold by \w{1,40} due to memory usage""",
        MIB,
    ),
    _row(
        "kubernetes", Cause.HOST,
        r"""node was low on resource: \[?memory
        (?:\. (?:Threshold quantity: [^,]{1,40}, available: [^.]{1,40}\.)?
        Container (?P<process>[\w.-]{1,64}?) was using @used)?
        |node had condition: \[[^\]]{0,60}MemoryPressure""",
    ),
    _row(
        "kubernetes", Cause.HOST_LIMIT,
        r"""OutOfMemoryError: Container killed due to memory|ran out-of-memory and exited
        |Created an OOM event in|topic=/tasks/oom|containerd\.events\.TaskOOM|container oom [\da-f]{12}""",
    ),
    _row(
        "ray", Cause.HOST,
        r"""Workers?\(tasks/actors\) killed due to memory pressure \(OOM\)
        |(?:Tasks?|Workers?|Actors?)(?:(?!killed).){0,100} killed due to the node running low on memory
        |Memory on the node .{0,400}? was (?:running was)? @used / @limit
        |System memory low at node .{1,100}? Used memory \(@used_2\) / total capacity \(@limit_2\)""",
    ),
    _row(
        "ray", Cause.HOST,
        r"RayOutOfMemoryError: More than \d{1,3}% of the memory on node .{1,100}? is used \(@used / @limit", MIB * KIB,
    ),
    _row(
        "ray", Cause.HOST_LIMIT,
        r"ObjectStoreFullError|object store (?:memory)? is full|because it is full\. Object size is @requested",
    ),
    _row(
        "yarn", Cause.HOST_LIMIT,
        r"""running beyond (?:physical|virtual) memory limits\. Current usage: @used of @limit physical
        |exceeding (?:physical)? memory limits\. @used_2 of @limit_2""",
    ),
    _row("ray", Cause.UNKNOWN, r"may have exceeded K8s pod memory limits|killed by SIGKILL by OOM killer due to high"),
    _row("java", Cause.HOST_LIMIT, r"java\.lang\.OutOfMemoryError"),
    _row(
        "torch", Cause.HOST,
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate @requested",
    ),
    _row(
        "torch", Cause.UNKNOWN,
        r"DataLoader worker \(pid(?:\(s\))?[\d,]{1,60}\) (?:is killed by signal: Killed|exited unexpectedly)",
    ),
    _row(
        "torch", Cause.HOST_LIMIT,
        r"""(?:is killed by signal: Bus error\. It is possible that dataloader's workers are)? out of shared memory
        |Insufficient shared memory
        |unable to (?:mmap|allocate|write|open shared memory)(?:(?!too many open).){0,200}?
        (?:No space left on device|Cannot allocate memory)\((?:28|12)\)
        |unable to write to file </torch_|unable to allocate shared memory \(shm\)""",
    ),
    _row(
        "nccl", Cause.HOST_LIMIT,
        r"""(?:posix_fallocate|shared memory segment|/dev/shm/nccl-\w{6})
        (?:to @requested , error|\(size @requested_2\))?(?:(?!NCCL).){0,200}
        (?:No space left|Cannot allocate memory|out of shared)
        |No space left(?:(?!NCCL).){0,200}/dev/shm
        |ibv_reg_mr(?:_iova2)?\w{0,40} failed(?:(?!NCCL).){0,60} Cannot allocate memory""",
    ),
    _row("nccl", Cause.HOST, r"Failed to malloc @requested|Failed to CUDA host alloc @requested_2"),
    _row(
        "the driver", Cause.HOST,
        r"could not allocate pinned host memory of size: @requested|failed to alloc @requested_2 on host",
    ),
    _row(
        "tensorflow", Cause.HOST,
        r"OOM when allocating tensor with shape \[[\d,]{0,200}\] and type \w{1,20} on [\w:/]{0,80}? device:CPU",
    ),
    _row(
        "ollama", Cause.HOST,
        r"model requires more system memory (?:\(@requested\))? than is available (?:\(@limit\))?",
    ),
    _row("python", Cause.HOST, r"(?i:errno12|os error 12).{0,3} Cannot allocate memory"),
    _row(
        "c++", Cause.HOST,
        r"""std::bad_alloc (?!: (?:out_of_memory|cudaError|CUDA error|RMM failure))
        |memory allocation of @requested failed""",
    ),
    _row("windows", Cause.HOST, r"(?i:paging file is too small|WinError1455|os error1455|out of virtual memory)"),
    _row("notebook", Cause.HOST, r"crashed after using all available RAM|tried to allocate more memory than is"
         r" available"),
    _row("signal", Cause.UNKNOWN, _by_signal(9, "SIGKILL", "Killed") + "|signal:killed"),
    _row("bus error", Cause.UNKNOWN, _by_signal(7, "SIGBUS", "Bus error")),
    _row("slurm", Cause.UNKNOWN, r"srun: error: [^:]{1,100}: tasks?[\d,-]{1,100}: Killed"),
)  # fmt: skip
# Words that need their line, or the white space around them.
_LINES = tuple(
    Rule(cause, said_by, Lines(pattern))
    for said_by, cause, pattern in (
        ("slurm", Cause.HOST_LIMIT, r"(?<![\w])OUT_OF_ME(?:MORY\b|\+|\b)"),
        # Docker says of every container whether it was: "OOMKilled": false.
        ("kubernetes", Cause.HOST_LIMIT, r"\bOOMKilled\b(?!\"?\s?[:=]\s?\"?false)"),
        ("kernel", Cause.UNKNOWN, r"(?<![\w.-])(?P<process>[\w.-]{1,64}) invoked oom-killer"),
        (
            "python", Cause.HOST,
            r"(?<![A-Za-z])(?:_Array)?MemoryError(?::(?!\s{0,8}std::bad_alloc:)(?:\s{0,8}Unable to allocate\s{1,8}"
            r"(?P<requested>\d[\d.]{0,20})\s?(?P<requested_unit>[KMGT]?i?B))?|\s{0,8}$)",
        ),
        ("python", Cause.HOST, r"\bCannot allocate memory\b|: out of memory \(allocated \d"),
        ("exit code", Cause.UNKNOWN, _exit_code(r"137\b|-9\b")),
        ("bus error", Cause.UNKNOWN, _exit_code(r"135\b|-7\b")),
        ("bus error", Cause.UNKNOWN, r"(?:^|[\])%|]\s{0,8}|line \d{1,6}:\s{1,8}\d{1,10} )Bus error\b"),
        (
            "shell", Cause.UNKNOWN,
            r"(?:^|[\])%|]\s{0,8}|line \d{1,6}:\s{1,8}\d{1,10} )Killed(?:\s{2,40}\S[^\n]{0,200})?\s{0,40}$"
            r"|^zsh: killed\s|\[\d{1,4}\]\s{0,4}[+-]?\s{1,8}(?:\d{1,10} )?[Kk]illed\b",
        ),
    )
)  # fmt: skip
RULES = (*_SENTENCES, *_LINES)
_LIMIT = Lines(r"memory: usage (\d{1,15})kB, limit (\d{1,15})kB")
_PAGES = re.compile(r"(?:anon|file|shmem)-rss:(\d{1,15})kB")
_OF_A_REASON = Lines(
    r"DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)|TERM_(?:RUNLIMIT|OWNER|PREEMPT)|walltime \d{1,12} exceeded limit"
    r"|DEADLINE_?EXCEEDED|[Pp]reempted"
)


def find_host_failures(text: str | LogText) -> list[HostFailure]:
    """Everything that is said of a host's memory, in the order of the text, equal words once."""
    log = text if isinstance(text, LogText) else LogText(text)
    limits = [(match.start(), int(match[2]) * KIB) for match in _LIMIT.find(log.written)]
    failures: dict[tuple[str, str], HostFailure] = {}
    for place, last, rule, match in apart(_matches(log)):
        groups: Mapping[str, str | None] = match.groupdict()
        process = groups.get("process") or ""
        pages = _PAGES.findall(groups.get("pages") or "")
        used, limit, requested = (_bytes(match, name, rule.unit) for name in ("used", "limit", "requested"))
        before = bisect_right(limits, (place, 0)) - 1
        cause = Cause(rule.says)
        if limit is None and before >= 0 and process and cause is Cause.HOST_LIMIT:
            limit = limits[before][1]
        failure = HostFailure(
            said_by=rule.who,
            cause=cause,
            text=log.lines_of(place, last, _QUOTED),
            line=log.line_at(place),
            process=process,
            resident_bytes=sum(map(int, pages)) * KIB if pages else used,
            limit_bytes=limit,
            requested_bytes=requested,
            certain=cause is not Cause.UNKNOWN or rule.who in _CERTAIN,
        )
        failures.setdefault((rule.who, failure.text), failure)
    return list(failures.values())


def _matches(log: LogText) -> Iterator[Found]:
    """With places in the text."""
    for rule in RULES:
        in_lines = isinstance(rule.words, Lines)
        for match in rule.words.find(log.written if in_lines else log.sentences):
            first, last = match.start(), match.end() - 1
            yield *((first, last) if in_lines else (log.original(first), log.original(last))), rule, match


def other_reason(log: LogText) -> str:
    """What a log itself gives as the reason for which a process was killed, other than memory; else empty."""
    match = _OF_A_REASON.first(log.written)
    return match[0] if match else ""


def _bytes(match: re.Match[str], name: str, unit: int) -> int | None:
    size = read_size(match, name, unit) or read_size(match, f"{name}_2", unit)
    return size and size[0]
