"""Reads what a log says of GPU memory running out: by phrases, whatever stands between them.

torch's phrases are those of c10/cuda/CUDACachingAllocator.cpp (and its ROCm, XPU and NPU likes) and
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
from itertools import chain, pairwise

from planner.truth.failures.causes import ONE_EXABYTE
from planner.truth.failures.log_text import LogText
from planner.truth.failures.messages import Form, Frame, GpuFailure, ProcessBytes
from planner.truth.failures.rules import Found, Rule, Searched, Words, read_size

MOST_MESSAGES = 1000
"""Of one log, that are told apart; each rank of a large job has one."""
_LONGEST_MESSAGE = 4000
"""Characters without white space: a message that lists sixty processes."""
_QUOTED = 1200
_BEGINNING = 200
"""Characters that are repeated of a message, and of one in no known form."""
_BACK = 64 * 1024
"""Characters before a message in which its traceback is looked for."""
_MOST_FRAMES = 100
_LONGEST_PREFIX = 300
"""Characters before a message on its line, in which a rank is looked for."""
_NOT_KNOWN_BYTES = 1 << 62
"""2**64 - 1 is what NVML says where a driver does not tell (WSL, Windows), and what stands for no limit."""
_BEGINS = Words(
    r"""
    (?P<vendor>CUDA|HIP|XPU|NPU|MUSA|MLU|GCU|DCU|HPU|MACA|SDAA|PPU)(?:backend)? out of (?:the)? memory
    (?=[.!:;,(\[]|Tried|occurred)
    |(?P<mps>MPS) backend out of memory
    |[Oo]ut of memory\. Tried to allocate
    |(?P<block>can NOT allocate memory block with size larger than)
    |(?<!memory\.)(?<!\)\.)(?<!B!) Tried to allocate (?=\d)
    |(?P<plain>(?<!lang\.)(?<!exceptions\.) OutOfMemoryError: (?!Container|Java|GC|Task|Worker|Actor|Memory on))
    |Allocation on device (?:\d{1,6})?(?:would exceed|Traceback|$)
    """
)
_FIGURES = {
    "tried": Words(r"(?:Tried to allocate|Requested:) @tried"),
    "total": Words(r"total capac?i?ty of @total | @total_2 total capacity | Device limit: @total_3"),
    "free": Words(r"@free (?:is)? (?-i:free) | Free\(according to [A-Z]{1,9}\): @free_2"),
    "allocated": Words(
        r"@allocated (?:is allocated by PyTorch|already allocated) | Currently allocated: @allocated_2"
        r"| MPS allocated: @allocated_3"
    ),
    "other": Words(r"other allocations: @other"),
    "allowed": Words(
        r"@allowed allowed | max allowed: @allowed_2 | memory fraction\): @allowed_3 | with size larger than @allowed_4"
    ),
    "reserved": Words(r"@reserved \w{6,9} in total by"),
    "rest": Words(r"@rest (?:cached|is reserved by PyTorch but unallocated)"),
    "pools": Words(r"@pools (?:is)? allocated in private pools"),
}
_DEVICE = Words(r"(?:GPU|NPU|XPU|MUSA|MLU|GCU|HPU|on device)(\d{1,6})")
_PROCESS = Words(r"(?:Process (?P<process>\d{1,10})|[Tt]his process) has @held memory in use")
_MORE_THAN_AN_EXABYTE = Words("Tried to allocate more than 1EB")

# What others say, with or without the size that they asked for: form, who, words.
_TORCH = Rule(Form.UNKNOWN, "torch", _BEGINS)
_OTHERS = tuple(
    Rule(form, who, Words(pattern))
    for form, who, pattern in (
        (
            Form.NCCL, "NCCL",
            r"""(?:Cuda|CUDA|HIP) failure (?:\d{1,5})? 'out of memory'
            (?:(?:(?!Cuda failure).){0,1000}? Failed to CUDA (?:host)?(?:c|m)?alloc(?:async)? @tried)?""",
        ),
        (
            # torch asks NVML who holds what only where cudaMalloc failed; where NVML fails too, it prints only this.
            Form.PLAIN, "NVML",
            r'NVML_SUCCESS == .{1,100}? INTERNAL ASSERT FAILED at"?[^"]{0,200}? CUDACachingAllocator\.cpp',
        ),
        (Form.NCCL, "NCCL", r"Failed to CUDA (?:c|m)?alloc(?:async)? @tried"),
        (
            Form.LIBRARY, "",
            r"""(?P<who>CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|CURAND|HIPBLAS|HIPFFT|MIOPEN)
            _(?:STATUS_)?(?:ALLOC_FAILED|MEMORY_ERROR|INTERNAL_ALLOC|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)""",
        ),
        (Form.LIBRARY, "rocBLAS", r"(?:rocblas|ROCBLAS)_(?:status|STATUS)_(?:memory_error|MEMORY_ERROR|ALLOC_FAILED)"),
        (Form.LIBRARY, "MIOpen", r"miopenStatusAllocFailed"),
        (Form.LIBRARY, "bitsandbytes", r"Error out of memory at line \d{1,6} in file [^,;]{0,80}?\.c(?:pp|uh?)?"),
        (
            Form.LIBRARY, "CUDA's allocator in C++",
            r"""std::bad_alloc: (?:(?:out_of_memory:)? (?:CUDA error|RMM failure)|cudaErrorMemoryAllocation)
            (?:.{0,40}? Free memory: @free - Requested memory: @tried)?""",
        ),
        (Form.LIBRARY, "CuPy", r"cupy[\w.]{0,60} OutOfMemoryError: Out of memory allocating @tried"),
        (
            Form.LIBRARY, "TensorRT",
            r"""Requested amount of GPU memory \(@tried\) could not be allocated
            |Tactic Device request: @tried_2 Available: @free
            |Error Code \d{1,4}: OutOfMemory \(no further information\)""",
        ),
        (
            Form.FRAMEWORK, "ONNX Runtime",
            r"""Failed to allocate memory for requested buffer of size @tried
            |Available memory of @free is smaller than requested bytes of @tried_2""",
        ),
        (
            Form.FRAMEWORK, "llama.cpp",
            r"allocating @tried on device (?P<device>\d{1,4}): cudaMalloc failed: out of memory",
        ),
        (
            Form.FRAMEWORK, "MLX",
            r"Attempting to allocate @tried which is greater than the maximum allowed buffer size of @total",
        ),
        (
            Form.FRAMEWORK, "TensorFlow",
            r"""OOM when allocating tensor with shape \[[\d,]{0,200}\] (?!and type \w{1,20} on [\w:/]{0,80}?device:CPU)
            |Allocator (?:\(\w{1,40}\))? ran out of memory trying to allocate @tried
            |failed to allocate [\d.]{1,20}[KMGT]?i?B? \(@tried_2\) from device
            |cuMemAllocAsync failed to allocate @tried_3:.{0,300}?Free memory/Total memory: @free/@total""",
        ),
        (
            Form.FRAMEWORK, "JAX",
            r"""Out of memory (?:while trying to allocate|allocating) @tried
            |RESOURCE_EXHAUSTED: [\w:]{0,80}? Failed to allocate request for [\w.]{1,20} \(@tried_2\)""",
        ),
        (Form.FRAMEWORK, "XLA", r"Ran out of memory in memory space hbm\. Used @tried of @total"
         r"|Attempting to reserve @tried_2 at the bottom of memory"),
        (
            Form.FRAMEWORK, "PaddlePaddle",
            r"""enforce allocating <= available failed, @tried_2 > @free_2
            |Out of memory error on GPU (?P<device>\d{1,4})\. Cannot allocate @tried memory on GPU \d{1,4},
            @allocated memory has been allocated and available memory is only @free""",
        ),
        (Form.FRAMEWORK, "Intel Gaudi's bridge", r"Allocation failed for size:: @tried"),
        (
            Form.FRAMEWORK, "the engine's share of the GPU (vLLM)",
            r"""No available memory for the cache blocks
            |(?:reserved for KV Cache is|Available KV cache memory:) -\d
            |(?:(?<!\d)@tried KV cache is needed, which)? is larger than the
            (?:maximum number of tokens that can be stored in|available) KV cache""",
        ),
        (
            Form.FRAMEWORK, "the engine's share of the GPU (TGI)",
            r"Not enough memory to handle \d{1,12} (?:total|prefill) tokens",
        ),
        (
            Form.FRAMEWORK, "the engine's share of the GPU (SGLang)",
            r"Not enough memory\. Please try to (?:in|de)crease --mem-|alloc_\w{1,40} runs out of memory",
        ),
        (
            Form.FRAMEWORK, "an engine at its start (vLLM)",
            r"""Free memory on device (?:[\w:]{1,12})? \(@free/@total\) on startup is less than
            desired GPU memory utilization \([\d.]{1,9}, @tried\)""",
        ),
        (Form.FRAMEWORK, "Accelerate", r"No executable batch size found, reached zero"),
        (
            Form.DRIVER, "",
            r"""(?:CUDA|HIP|Hip|MUSA|XPU|NPU|ROCm|Triton|Metal)(?:driver|runtime)?[Ee]rror [^.'"]{0,100}?
            (?:out of memory|OUT_OF_MEMORY|OutOfMemory)""",
        ),
        (
            Form.DRIVER, "",
            r"""(?:cuda runtime error \(2\)|error=2): out of memory
            |(?:size @tried \()? cuda(?:Malloc|MallocAsync|MallocManaged|MemAlloc|HostAlloc)\w{0,20}
            (?:failed:|error) out of memory
            |Failed to cudaMalloc @tried_2 (?:on device \d{1,4})? \(error 2 out of memory
            |Cuda Runtime \(out of memory\)|CUDA failed with error out of memory|cudaSuccess \(2 vs\. 0\) out of memory
            |Gpu API call \(out of memory\)
            |CL_MEM_OBJECT_ALLOCATION_FAILURE
            |(?:CUresult|cudaError(?:_t)?|hipError(?:_t)?) error:? (?:result=)? 2(?!\d)
            |cuMemCreate CUDA_ERROR_OUT_OF_MEMORY
            |cudaErrorMemoryAllocation|(?<!on host:) CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory
            |(?:UR_RESULT|PI|ZE_RESULT|SYCL|VK)_ERROR_OUT_OF_(?:DEVICE|POOL)_MEMORY
            |kIOGPUCommandBufferCallbackErrorOutOfMemory
            |EL0004
            |(?:[Aa]lloc|rtMalloc)[\w,:]{0,80}(?:result|code|ret|retCode)[=:]?
            (?:0x)?(?:207001|ACL_ERROR_RT_MEMORY_ALLOCATION)
            |(?:CUDA|GPU|device)[\w:]{0,30} allocation [\w:]{0,30}(?:failed|error)[\w:]{0,30} out of memory""",
        ),
    )
)  # fmt: skip
RULES = (_TORCH, *_OTHERS)
_CAUGHT_BEFORE = Words(r"errors? (?:during|in|while) autotuning")
_CAUGHT_BACK = 300
"""Characters without white space before a message in which it is said that it was caught, with a logger's prefix."""
_CAUGHT_AFTER = Words(
    r"""Ignoring this choice|for benchmark choice|\(may not be an issue|indicates that this is not a failure
    |(?:attempting to|trying to) recover from OOM|skipping (?:this)? batch|insufficient to use tactic|Skipping tactic
    |Batch size \d{1,9} failed, trying batch size"""
)
_CAUGHT_WITHIN = 1500
"""Characters without white space after a message in which it is said that it was caught."""
_VENDORS = tuple(
    (vendor, Words(begins))
    for vendor, begins in (
        ("XPU", r"^(?:XPU|UR_RESULT|PI_ERROR|ZE_RESULT|SYCL)"),
        ("HIP", r"^(?:hip|ROCm|rocblas|miopen)"),
        ("NPU", r"^(?:NPU|EL0004|rtMalloc)|207001|ACL_ERROR"),
        ("MUSA", r"^MUSA"),
    )
)
"""Who speaks, where it is not CUDA and torch's allocator does not say it."""
_SOURCE_LINE = re.compile(r"\s*(?:except|raise|from|import|class|if|elif|return)\b")


def find_messages(text: str | LogText) -> list[GpuFailure]:
    """Every message in the text, in its order, at most MOST_MESSAGES and equal ones of a rank once; what begins as one
    and has no figures of torch's is there with the form UNKNOWN."""
    log = text if isinstance(text, LogText) else LogText(text)
    caught_before = [match.end() for match in _CAUGHT_BEFORE.find(log.sentences)]
    caught_after = [match.start() for match in _CAUGHT_AFTER.find(log.sentences)]
    # A log says the same again and again: in the traceback, in the launcher's summary, and once for the driver.
    different: dict[tuple[object, ...], GpuFailure] = {}
    before = 0
    for (at, failure), (after, _) in pairwise(chain(_failures(log), ((len(log.squashed), None),))):
        if failure is None:
            break
        place = log.original(at)
        rank = _rank_before(log.text, place)
        caught = _stands_between(caught_before, max(before, at - _CAUGHT_BACK), at)
        caught = caught or _stands_between(caught_after, at, min(after, at + _CAUGHT_WITHIN))
        before = at
        key = (failure.form, failure.text, rank, caught)
        if key in different:
            continue
        frames = _frames_before(log.text, place)
        different[key] = replace(failure, line=log.line_of(at), rank=rank, frames=frames, caught=caught)
        if len(different) == MOST_MESSAGES:
            break
    return list(different.values())


def _failures(log: LogText) -> Iterator[tuple[int, GpuFailure]]:
    """Each with its place, as the log has them."""
    begins = [match for match in _BEGINS.find(log.sentences) if not _is_repeated(log, match)]
    following = dict(pairwise([*(match.start() for match in begins), len(log.squashed)]))
    found: list[Found] = [(match.start(), match.end(), _TORCH, match) for match in begins]
    found += [(match.start(), match.end(), rule, match) for rule in _OTHERS for match in rule.words.find(log.sentences)]
    known: dict[str, tuple[GpuFailure, int]] = {}  # the same words come often
    end = 0
    for at, last, rule, match in sorted(found, key=lambda each: (each[0], each[2] is not _TORCH, -each[1])):
        if rule is not _TORCH:
            if at >= end:
                end = last
                yield at, _read_other(rule, match, log)
            continue
        window = log.squashed[at : min(following[at], at + _LONGEST_MESSAGE)]
        if window not in known:
            failure, length = _read_torch(window, match)
            whole = failure.form is Form.PLAIN
            quoted = log.rest_of_line(at, _QUOTED) if whole else log.quote(at, at + length, _QUOTED)
            known[window] = replace(failure, text=quoted), length
        failure, length = known[window]
        end = max(end, at + length)
        yield at, failure


def _is_repeated(log: LogText, match: re.Match[str]) -> bool:
    """Whether it is a line of a program's source, or the name of an error before the words themselves."""
    if match["plain"] is None:
        return False
    source = log.lines[log.line_of(match.start()) - 1]
    return bool(_SOURCE_LINE.match(source)) or _BEGINS.pattern.match(log.squashed, match.end()) is not None


def _stands_between(places: list[int], first: int, last: int) -> bool:
    return bisect_right(places, last) > bisect_right(places, first)


def _read_torch(window: str, begin: re.Match[str]) -> tuple[GpuFailure, int]:
    """The figures of one message, and how many characters of the window are its own."""
    figures: dict[str, int] = {}
    rounding, end = 0, len(begin[0])
    searched = Searched(window)
    for name, figure in _FIGURES.items():
        match = figure.first(searched)
        if match is None:
            continue
        sizes = [read_size(match, group) for group in (name, *(f"{name}_{number}" for number in range(2, 5)))]
        count, half = next(size for size in sizes if size is not None)
        end = max(end, match.end())
        if count < _NOT_KNOWN_BYTES:
            figures[name] = count
            rounding += half
    this_process: int | None = None
    others: list[ProcessBytes] = []
    for process in _PROCESS.find(searched):
        end = max(end, process.end())
        size = read_size(process, "held")
        if size is None or size[0] >= _NOT_KNOWN_BYTES:
            continue
        held = size[0]
        rounding += size[1]
        if process["process"] is None:
            this_process = held
        else:
            others.append(ProcessBytes(int(process["process"]), held))
    vendor = "MPS" if begin["mps"] else (begin["vendor"] or "").upper()
    device = _DEVICE.pattern.search(window, 0, _BEGINNING)
    allocated, reserved = figures.get("allocated"), figures.get("reserved")
    if reserved is None and "rest" in figures:
        # What is "reserved in total" counts what is allocated; "cached" and "reserved but unallocated" do not.
        reserved = figures["rest"] + (allocated or 0)
    if "other" in figures:
        this_process = figures["other"] + (allocated or 0)
    if _MORE_THAN_AN_EXABYTE.first(searched):
        figures["tried"], end = ONE_EXABYTE, len(window)
    form = _form_of(window, vendor, figures)
    if form is Form.UNKNOWN:
        end = min(len(window), max(end, _BEGINNING))
    failure = GpuFailure(
        form=form,
        text="",
        line=0,
        vendor=vendor,
        device=int(device[1]) if device else None,
        tried_bytes=figures.get("tried"),
        total_bytes=figures.get("total"),
        free_bytes=figures.get("free"),
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        private_pool_bytes=figures.get("pools", 0),
        allowed_bytes=figures.get("allowed"),
        this_process_bytes=this_process or None,
        other_processes=tuple(others),
        rounding_bytes=rounding,
    )
    return failure, end


def _form_of(window: str, vendor: str, figures: dict[str, int]) -> Form:
    if vendor == "MPS":
        return Form.MPS
    if window.startswith("Allocationondevice") and "total" in figures:
        return Form.ASYNC
    if "tried" not in figures or figures["tried"] == ONE_EXABYTE:
        return Form.PLAIN
    if "total" not in figures or "allocated" not in figures:
        return Form.UNKNOWN
    if vendor not in ("CUDA", "HIP", ""):
        return Form.DEVICE
    if "reserved" in figures:
        return Form.RESERVED
    if "cached" in window:
        return Form.CACHED
    if "capacty" in window:
        return Form.PROCESSES
    return Form.ALLOC_CONF if "PYTORCH_ALLOC_CONF" in window else Form.EXPANDABLE


def _read_other(rule: Rule, match: re.Match[str], log: LogText) -> GpuFailure:
    groups: Mapping[str, str | None] = match.groupdict()
    total = read_size(match, "total")
    # vLLM writes the unit once: (3.5/23.5 GiB).
    written = round(float(match["total"].replace(",", "")) * 100) if total else 0
    unit = total[0] * 100 // written if total and written else 1
    sizes = {
        name: read_size(match, name, unit) or read_size(match, f"{name}_2") or read_size(match, f"{name}_3")
        for name in ("tried", "free", "total", "allocated")
    }
    tried, free, total, allocated = (
        size if size is not None and size[0] < _NOT_KNOWN_BYTES else None for size in sizes.values()
    )
    return GpuFailure(
        form=Form(rule.says),
        text=log.rest_of_line(match.start(), _QUOTED),
        line=0,
        vendor=next((vendor for vendor, begins in _VENDORS if begins.pattern.search(match[0])), ""),
        who=(groups.get("who") or "").upper() or rule.who,
        device=int(groups["device"] or 0) if groups.get("device") else None,
        tried_bytes=tried and tried[0],
        total_bytes=total and total[0],
        free_bytes=free and free[0],
        allocated_bytes=allocated and allocated[0],
    )


_FRAME = re.compile(r'File "(?P<file>[^"\n]{1,500})", line (?P<line>\d{1,9}), in (?P<function>[^\n]{1,200})')
_TRACEBACK = "Traceback (most recent call last)"
_RANK = re.compile(r"\[rank(\d{1,7})\]:|\brank[ =](\d{1,7})\b|\(VllmWorker[^)\n]*rank=(\d{1,7})")


def _frames_before(text: str, at: int) -> tuple[Frame, ...]:
    """The frames of the traceback that ends with what stands at `at`, outermost first."""
    before = text[max(0, at - _BACK) : at]
    begin = before.rfind(_TRACEBACK)
    if begin < 0:
        return ()
    return tuple(_frames(before, begin))[-_MOST_FRAMES:]


def _frames(before: str, begin: int) -> Iterator[Frame]:
    for match in _FRAME.finditer(before, begin):
        yield Frame(match["file"], int(match["line"]), match["function"].strip())


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
