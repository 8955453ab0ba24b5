"""What a rank's process holds before anything of the job (Python, PyTorch, libraries, CUDA's side of the host), and its
pinned memory as torch's CachingHostAllocator takes it: rounded, never split, and kept when it is given up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.errors import AllocatorConfError
from planner.host_events import Backing, HostBlock, HostCategory
from planner.units import MIB


# Measured: torch 2.13.0+cu130, transformers 5.13, DeepSpeed 0.19.8, Python 3.11.7, glibc 2.39, Linux 6.18, x86-64, one
# thread, 2026-11-27; /proc/self/smaps_rollup (Anonymous, and Pss_File for files) after the imports and one step of
# AdamW on a small model: `python tests/host/measure_processes.py`.
@dataclass(frozen=True, slots=True)
class Fact:
    """MiB of one process: between which bounds, and the best guess; with its source."""

    low: float
    best: float
    high: float
    source: str

    @property
    def low_bytes(self) -> int:
        return round(self.low * MIB)

    @property
    def best_bytes(self) -> int:
        return round(self.best * MIB)

    @property
    def high_bytes(self) -> int:
        return round(self.high * MIB)


TORCH = Fact(
    180,
    354,
    480,
    "Python and PyTorch: measured, 354 MiB; another build or version may differ",
)
TRANSFORMERS = Fact(40, 56, 120, "transformers: measured, 56 MiB; with data sets and tokenizers more")
LIBRARY_FILES = Fact(60, 92, 1500, "libraries' pages, mapped from files: measured, 92 MiB of the CPU's; CUDA's more")
CUDA = Fact(
    114, 900, 1690,
    "CUDA's side of the host: not measured here; taken between a first tensor with kernels loaded lazily, 114 MiB, and"
    " with all kernels loaded, 1,689 MiB (pytorch/pytorch#113326), with the middle as the best guess: the share of NCCL"
    " and cuBLAS is not known",
)  # fmt: skip
WORKER = Fact(8, 37, 80, "a worker of a data loader that was forked: measured, 37 MiB; what its code imports is more")


SUMMED = "Ranks of a node are summed as they stand in the same phase; the upper end has each at its highest point."
PINNED = (
    "Pinned memory as torch 2.13's CachingHostAllocator takes it: blocks rounded up to powers of two unless"
    " PYTORCH_ALLOC_CONF says otherwise, kept when they are given up; it counts as resident."
)


def workers_sentence() -> str:
    """On whose word a data loader's workers are counted."""
    return f"{as_sentence(WORKER.source)} Besides, each keeps the samples of one batch."


def process_facts(*, transformers: bool) -> list[Fact]:
    """What is known of the parts of a process that trains on a GPU."""
    return [TORCH, CUDA, TRANSFORMERS] if transformers else [TORCH, CUDA]


def process_blocks(facts: Sequence[Fact]) -> Iterator[HostBlock]:
    """The parts as blocks, and the libraries' pages, which the processes of a node share."""
    for fact, name in zip(facts, ("Python and PyTorch", "CUDA", "transformers"), strict=False):
        yield HostBlock(bytes=fact.best_bytes, category=HostCategory.PROCESS, name=name)
    files = LIBRARY_FILES.best_bytes
    yield HostBlock(bytes=files, category=HostCategory.PROCESS, backing=Backing.FILE, name="libraries")


def process_margins(facts: Sequence[Fact]) -> tuple[int, int]:
    """How many bytes fewer, and more, the parts may take."""
    fewer = sum(fact.best_bytes - fact.low_bytes for fact in facts)
    more = sum(fact.high_bytes - fact.best_bytes for fact in facts)
    return fewer, more


def as_sentence(text: str) -> str:
    """With a capital and a full stop."""
    return f"{text[0].upper()}{text[1:]}."


# torch 2.13, ATen/core/CachingHostAllocator.h: `allocate` rounds a request up to a power of two and looks for a free
# block of that size alone (`get_free_block`); `maybe_cache_block` keeps what is freed. A block is taken again once the
# copies out of it have passed, which is taken to be so by the next request.
_ROUND, _CACHE = "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"
_RESERVE = "pinned_reserve_segment_size_mb"
_OPTION = re.compile(rf"({_ROUND}|{_CACHE}|{_RESERVE}):([^,]*)")
_UNLIMITED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class PinnedRules:
    """Settings of the allocator; the defaults are torch's (c10/core/AllocatorConfig.h): no limits."""

    largest_rounded_bytes: int = _UNLIMITED
    """`pinned_max_round_threshold_mb`: what is larger is taken as it is."""
    largest_kept_bytes: int = _UNLIMITED
    """`pinned_max_cached_size_mb`: what is larger is given back when it is freed, and not rounded."""
    reserved_bytes: int = 0
    """`pinned_reserve_segment_size_mb`: a segment that is taken at first use; what is asked for comes out of it."""

    @classmethod
    def from_conf(cls, conf: str) -> PinnedRules:
        """What `PYTORCH_ALLOC_CONF` says of pinned memory. Raises AllocatorConfError for what is not a number."""
        options = {name: _megabytes(name, value) for name, value in _OPTION.findall("".join(conf.split()))}
        return cls(options.get(_ROUND, _UNLIMITED), options.get(_CACHE, _UNLIMITED), options.get(_RESERVE, 0))

    def block_bytes(self, requested_bytes: int) -> int:
        """What a request takes: `size <= threshold && size <= cached` rounds up (`allocate`)."""
        if requested_bytes <= 0:
            return 0
        if requested_bytes <= min(self.largest_rounded_bytes, self.largest_kept_bytes):
            return 1 << (requested_bytes - 1).bit_length()
        return requested_bytes


class PinnedMemory:
    """The pinned memory of one process: what is in use, and what is taken from the system for it."""

    def __init__(self, rules: PinnedRules) -> None:
        self._rules = rules
        self._free: Counter[int] = Counter()
        self.taken_bytes = 0
        self.used_bytes = 0

    def take(self, requested_bytes: int, count: int = 1) -> int:
        """The bytes of each of so many blocks: those that were given up, and then new ones."""
        size = self._rules.block_bytes(requested_bytes)
        again = min(self._free[size], count)
        self._free[size] -= again
        self.taken_bytes += size * (count - again)
        self.used_bytes += size * count
        return size

    def give_up(self, block_bytes: int, count: int = 1) -> None:
        """The blocks are free; only what is too large to be kept goes back to the system."""
        self.used_bytes -= block_bytes * count
        if block_bytes > self._rules.largest_kept_bytes:
            self.taken_bytes -= block_bytes * count
        else:
            self._free[block_bytes] += count

    @property
    def held_bytes(self) -> int:
        """What the process holds: what was taken, and at least the reserved segment once anything was."""
        return max(self.taken_bytes, self._rules.reserved_bytes) if self.taken_bytes else 0


def _megabytes(option: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 12:
        raise AllocatorConfError(
            f"{option}: {value[:40]!r} is not a whole number",
            allowed="megabytes, such as 64",
            place="PYTORCH_ALLOC_CONF",
        )
    return int(value) * MIB
