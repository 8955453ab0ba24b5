"""What a rank's process holds before anything of the job: blocks, how far they may be off, and on whose word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.host import processes
from planner.host.processes import Fact
from planner.host_events import Backing, HostBlock, HostCategory

SUMMED = "Ranks of a node are summed as they stand in the same phase; the upper end has each at its highest point."
PINNED = (
    "Pinned memory as torch 2.13's CachingHostAllocator takes it: blocks rounded up to powers of two unless"
    " PYTORCH_ALLOC_CONF says otherwise, kept when they are given up; it counts as resident."
)


def workers_sentence() -> str:
    """On whose word a data loader's workers are counted."""
    return f"{as_sentence(processes.WORKER.source)} Besides, each keeps the samples of one batch."


def process_facts(*, transformers: bool) -> list[Fact]:
    """What is known of the parts of a process that trains on a GPU."""
    own = [processes.TORCH, processes.CUDA]
    return [*own, processes.TRANSFORMERS] if transformers else own


def process_blocks(facts: Sequence[Fact]) -> Iterator[HostBlock]:
    """The parts as blocks, and the libraries' pages, which the processes of a node share."""
    for fact, name in zip(facts, ("Python and PyTorch", "CUDA", "transformers"), strict=False):
        yield HostBlock(bytes=fact.best_bytes, category=HostCategory.PROCESS, name=name)
    files = processes.LIBRARY_FILES.best_bytes
    yield HostBlock(bytes=files, category=HostCategory.PROCESS, backing=Backing.FILE, name="libraries")


def process_margins(facts: Sequence[Fact]) -> tuple[int, int]:
    """How many bytes fewer, and more, the parts may take."""
    fewer = sum(each.best_bytes - each.low_bytes for each in facts)
    more = sum(each.high_bytes - each.best_bytes for each in facts)
    return fewer, more


def as_sentence(said: str) -> str:
    """With a capital and a full stop."""
    return f"{said[0].upper()}{said[1:]}."
