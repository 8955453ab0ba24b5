"""Gives the trace of a rank: from the cache on disk, made here, or made in a process of its own."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner import cuda_on_paper
from planner.job.packages import refuse_missing_packages
from planner.job.schema import Job
from planner.planning import identity
from planner.planning.preload import PRELOAD, TRACER
from planner.runtime.limits import UNLIMITED
from planner.runtime.user_cache import traces_folder
from planner.tracing import rank_trace
from planner.tracing.isolated import USUAL_ISOLATION, Isolation, shell_put_aside, trace_isolated
from planner.tracing.rank_trace import Trace
from planner.units import GIB, MIB

_NO_LIMITS = Isolation(limits=UNLIMITED)
MOST_BYTES = GIB
"""Of all traces together: thousands of them, the ones used longest ago go first."""
_LARGEST_TEXT_BYTES = 512 * MIB
_SUFFIX = ".trace"


@dataclass(frozen=True, slots=True)
class TraceCache:
    """A folder of traces that several processes may use at a time. What cannot be read or written is not kept."""

    folder: Path
    most_bytes: int = MOST_BYTES

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> TraceCache | None:
        """The one in PLANNER_CACHE, by default in the user's cache folder; None where that says `none`."""
        folder = traces_folder(environment)
        return None if folder is None else cls(folder)

    def has(self, job: Job, rank: int) -> bool:
        return self._path(job, rank).is_file()

    def load(self, job: Job, rank: int) -> Trace | None:
        """The trace that was stored; None if there is none, or it is damaged."""
        path = self._path(job, rank)
        try:
            unpacking = zlib.decompressobj()
            text = unpacking.decompress(path.read_bytes(), _LARGEST_TEXT_BYTES)
            if not unpacking.eof:  # cut off, or too large
                return None
            trace = rank_trace.loads(text.decode())
            os.utime(path)
        except (OSError, ValueError, zlib.error):
            return None
        return trace

    def store(self, job: Job, rank: int, trace: Trace) -> None:
        """Keep the trace, and no more than `most_bytes` with the others."""
        content = zlib.compress(rank_trace.dumps(trace).encode(), 1)
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(_SUFFIX, dir=self.folder)  # if it is left behind, it counts
            os.close(descriptor)
            new = Path(name)
            try:
                new.write_bytes(content)
                new.replace(self._path(job, rank))
            finally:
                new.unlink(missing_ok=True)
            room = self.most_bytes
            kept = [(path, path.stat()) for path in self.folder.glob(f"*{_SUFFIX}")]
            for path, about in sorted(kept, key=lambda pair: pair[1].st_mtime, reverse=True):
                room -= about.st_size
                if room < 0:
                    path.unlink(missing_ok=True)

    def _path(self, job: Job, rank: int) -> Path:
        return self.folder / f"{identity.trace_id_of(job)}-{rank}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class TraceSource:
    """Where traces come from. `isolation` is that of a factory's process; without a cache every trace is made."""

    isolation: Isolation = USUAL_ISOLATION
    cache: TraceCache | None = None

    def trace_rank(self, job: Job, rank: int) -> Trace:
        """What one rank does. Raises SpecError or TraceError where it cannot be traced."""
        refuse_missing_packages(job)
        if job.model.factory:  # what the code of a factory does, no cache knows
            return trace_isolated(job, rank, self.isolation)
        known = self.cache.load(job, rank) if self.cache else None
        if known is not None:
            return known
        made = _trace(job, rank)
        if self.cache is not None:
            self.cache.store(job, rank, made)
        return made

    def knows(self, job: Job, ranks: list[int]) -> bool:
        """Whether the traces of all of these ranks are in the cache."""
        return self.cache is not None and not job.model.factory and all(self.cache.has(job, rank) for rank in ranks)


USUAL_SOURCE = TraceSource()


def build_paper_gpu() -> None:
    """Build, where it was not, what traces run on: for a machine or an image that has no compiler later.

    Raises TraceError where torch or a compiler is missing, ServerLostError where the paper GPU does not load.
    """
    cuda_on_paper.lasting_server(TRACER).start()


def _trace(job: Job, rank: int) -> Trace:
    is_free = "torch" not in sys.modules or "planner.paper" in sys.modules  # before torch
    if not is_free or not cuda_on_paper.can_take(job.cluster.gpu.target):
        server = cuda_on_paper.lasting_server(PRELOAD if job.model.hf_config else TRACER)
        return trace_isolated(job, rank, _NO_LIMITS, server=server)
    with shell_put_aside():
        from planner.tracing import job_program

        return job_program.trace(job, rank)
