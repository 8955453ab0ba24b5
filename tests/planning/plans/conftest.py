"""Small jobs, planned in this process, and what they hold at the end of each phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from planner.events import Category, Phase
from planner.job.layout import Mesh, rank_classes
from planner.job.schema import Cluster, Decoder, DpReplicate, Gpu, Input, Job, Model, Parallel, Software, Train
from planner.planning.judging import RankTrace
from planner.planning.plan import PlanningResult, plan_from_traces
from planner.planning.preload import PRELOAD
from planner.report.attribution import Life, lives, phase_spans
from planner.report.statement import PhaseStatement, RankClassStatement
from planner.runtime.fork_server import ForkServer
from planner.tracing.job_program import trace
from planner.tracing.rank_trace import Trace
from planner.units import GIB

DECODER = Decoder(layers=2, hidden=128, heads=2, kv_heads=2, ffn=256, vocab=512)
"""Each of its tensors is a multiple of 512 bytes and at most 1 MiB: blocks are as large as what is asked for."""
PARAMETERS = 2 * 512 * 128 + 2 * (4 * 128 * 128 + 3 * 128 * 256 + 2 * 128) + 128
ROWS = {"x": Input(shape=(128,)), "labels": Input(shape=(), dtype="int64", maximum=128)}
H100 = Gpu(name="H100-SXM-80GB", total_bytes=80 * GIB, arch="sm_90")
FACTORIES = """
import torch
from torch import nn

def mlp(width=128, layers=3):
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(width, width, bias=False), nn.ReLU())))

def frozen():
    model = mlp()
    model[0].requires_grad_(False)
    return model

def normed():
    return nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128), nn.Linear(128, 128))

class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(128, 128, bias=False), nn.Linear(128, 128, bias=False)

    def forward(self, x):
        return self.used(x)

class Mixed(nn.Module):
    '''A float32 and a float64 layer: parameters of two dtypes in one model.'''
    def __init__(self):
        super().__init__()
        self.narrow, self.wide = nn.Linear(128, 128, bias=False), nn.Linear(128, 128, bias=False)

    def to(self, *args, **kwargs):
        super().to(*args, **kwargs)
        self.wide.double()
        return self

    def forward(self, x):
        return self.wide(self.narrow(x).double())
"""


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    """Of all tests that plan or trace in children: it has loaded PyTorch once."""
    started = ForkServer(PRELOAD)
    started.start()
    yield started
    started.close()


@dataclass(frozen=True)
class Told:
    """A planned job, read in the words of the guides."""

    planned: PlanningResult

    @property
    def statement(self) -> RankClassStatement:
        return self.planned.plan.rank_classes[0]

    @property
    def trace(self) -> Trace:
        return self.planned.traces[0].trace

    def phase(self, phase: str, iteration: int) -> PhaseStatement:
        return next(each for each in self.statement.phases if (each.phase, each.iteration) == (phase, iteration))

    def peak(self, iteration: int) -> int:
        """The highest allocated bytes of one iteration."""
        return max(each.peak_allocated_bytes for each in self.statement.phases if each.iteration == iteration)

    def after(self, phase: str, iteration: int) -> dict[str, int]:
        """Block bytes by category at the end of a phase, of its last micro-batch; to the byte what the plan says."""
        found = self.ends(phase, iteration)[-1]
        assert sum(found.values()) == self.phase(phase, iteration).end_allocated_bytes
        return found

    def ends(self, phase: str, iteration: int) -> list[dict[str, int]]:
        """The same for each micro-batch."""
        found = lives(self.trace.events)
        moments = [s.last - 1 for s in phase_spans(self.trace.events) if (s.phase, s.iteration) == (phase, iteration)]
        return [self._at(found, moment) for moment in moments]

    def _at(self, found: dict[int, Life], moment: int) -> dict[str, int]:
        sums = dict.fromkeys(Category, 0)
        for life in _alive(found, moment):
            sums[life.category_at(moment)] += self.planned.timelines[0].block_bytes[life.block]
        return {category.value: size for category, size in sums.items() if size}

    def blocks(self, category: Category, phase: Phase, iteration: int) -> list[Life]:
        """The blocks of a category at the end of a phase."""
        last = max(s.last - 1 for s in phase_spans(self.trace.events) if (s.phase, s.iteration) == (phase, iteration))
        return [life for life in _alive(lives(self.trace.events), last) if life.category_at(last) is category]


def _alive(known: dict[int, Life], moment: int) -> list[Life]:
    """The blocks that are handed out after the event `moment`."""
    return [life for life in known.values() if life.birth <= moment < life.death]


_traced: dict[str, Trace] = {}


def tell(job: Job) -> Told:
    """Planned in this process, factories too; each job is traced once for all tests."""
    key = repr(replace(job, allocator=type(job.allocator)(), cluster=Cluster(gpu=Gpu(arch=job.cluster.gpu.arch))))
    if key not in _traced:
        _traced[key] = trace(job)
    found = [RankTrace(each, _traced[key]) for each in rank_classes(Mesh.of(job.parallel))]
    return Told(plan_from_traces(job, found))


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module of factories, `shop`."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(FACTORIES)
    return folder


@pytest.fixture
def job_of(shop: Path) -> Callable[..., Job]:
    """A job that trains the decoder, or what a factory of `shop` makes; what is not of the job is of its training.
    Under DDP it is torch 2.7's, whose process groups keep nothing."""

    def build(
        factory: str = "",
        *,
        model: Mapping[str, Any] | None = None,
        ddp: Mapping[str, Any] | None = None,
        torch: str = "",
        **train: Any,
    ) -> Job:
        if factory:
            made = Model(**{"factory": f"shop:{factory}", "factory_path": str(shop), **(model or {})})
            trained = Train(**{"micro_batch_size": 4, "inputs": ROWS, **train})
        else:
            made = Model(**{"decoder": DECODER, **(model or {})})
            trained = Train(**{"micro_batch_size": 8, "sequence_length": 64, **train})
        replicate = DpReplicate() if ddp is None else DpReplicate(**{"degree": 8, **ddp})
        return Job(
            model=made,
            train=trained,
            parallel=Parallel(dp_replicate=replicate),
            software=Software() if ddp is None else Software(torch=torch or "2.7"),
            cluster=Cluster(gpu=H100, gpus_per_node=min(replicate.degree, 8), nodes=max(replicate.degree // 8, 1)),
        )

    return build


@pytest.fixture
def told() -> Callable[[Job], Told]:
    """The plan of a job, its step traced once for all tests."""
    return tell


@pytest.fixture
def planned(job_of: Callable[..., Job]) -> Callable[..., Told]:
    """The plan of such a job."""
    return lambda *arguments, **keywords: tell(job_of(*arguments, **keywords))
