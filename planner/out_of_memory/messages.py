"""Finds and reads the messages of being out of GPU memory in a text: torch's own in every form, and others'.

torch's forms are those of c10/cuda/CUDACachingAllocator.cpp (and its ROCm translation) and
c10/cuda/CUDAMallocAsyncAllocator.cpp between 1.0 and 2.13:

- 1.0 to 1.3 in brackets, with `cached`, which leaves out what is allocated;
- 1.4 to 2.0 the same with `reserved in total by PyTorch`, which does not, and since 1.8 with `allowed`;
- 2.1 in sentences, with the processes that the driver knows on the GPU, and a misspelled `capacty`;
- 2.2 the same, advising `expandable_segments`; since 2.4 with the private pools of CUDA graphs, since 2.9 with
  `PYTORCH_ALLOC_CONF` in its advice.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.out_of_memory.failure import Form, GpuFailure, ProcessBytes
from planner.out_of_memory.traceback_lines import frames_before, rank_of
from planner.units import GIB, KIB, MIB

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
