"""A process that traces, warm: the paper GPU is global to a process, so each does one job at a time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planner import planning
from planner.answer import advised
from planner.errors import PlannerError, SpecError
from planner.history.columns import compact_json
from planner.layout.mesh import Mesh
from planner.layout.rank_classes import rank_classes
from planner.planning import Planned
from planner.report.statement import Plan
from planner.service import sandbox
from planner.service.ids import Order
from planner.service.outcomes import Refused, Traced
from planner.spec.job import Cluster, Decoder, Gpu, Job, Model, Train
from planner.tracing import wire
from planner.tracing.isolated import Limits
from planner.units import GIB

LOOK_SECONDS = 0.1
_LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip
_GPU = Cluster(gpu=Gpu(total_bytes=GIB, arch="sm_90"))
_TOKENS = Train(sequence_length=16)
WARMING = (
    Job(
        model=Model(decoder=Decoder(layers=1, hidden=32, heads=2, kv_heads=2, ffn=64, vocab=64)),
        train=_TOKENS,
        cluster=_GPU,
    ),
    Job(model=Model(hf_config=_LLAMA), train=_TOKENS, cluster=_GPU),
)
"""What takes long once, in torch and in transformers, is done before the first job comes."""


class Tracer:
    """Traces, judges and advises. What is wrong with a job comes back as a value; an exception is a fault of ours."""

    def __init__(self, limits: Limits) -> None:
        """`limits` are those of a job's own code, which runs in a process of its own."""
        self._limits = limits
        self._last: tuple[str, Planned] | None = None
        from planner import paper  # noqa: F401, before torch

        for job in WARMING:
            planning.plan(job)

    def process(self) -> int:
        """Answered as soon as it is warm, and while it traces."""
        return os.getpid()

    def plan(self, order: Order) -> Plan | Refused:
        """Traces every rank class here, one after the other, and judges."""
        try:
            return self._kept(order, planning.planned(order.job, order.calibration, limits=self._sandboxed(order.job)))
        except Exception as error:
            return _refused(error, order.job)

    def trace(self, job: Job, rank: int) -> Traced | Refused:
        """The trace of one rank, and which ranks of its class do otherwise."""
        try:
            found = planning.trace_of_rank(job, rank, self._sandboxed(job))
        except PlannerError as error:
            return Refused(error)
        parts = [
            part.representative
            for each in rank_classes(Mesh.of(job.parallel))
            if each.representative == rank
            for part in planning.parts_of_class(job, each, found)
        ]
        return Traced(compact_json(wire.to_json(found)), tuple(parts[1:]))

    def judge(self, order: Order, texts: Mapping[int, str]) -> Plan | Refused | None:
        """The plan that follows from traces by representative; None if they are not those of the job's ranks."""
        try:
            found = {rank: wire.from_json(json.loads(text)) for rank, text in texts.items()}
            traces = planning.with_their_ranks(order.job, found)
        except (ValueError, KeyError, TypeError, IndexError):
            return None
        try:
            return self._kept(order, planning.judged(order.job, traces, order.calibration))
        except Exception as error:
            return _refused(error, order.job)

    def advise(self, order: Order) -> Plan | Refused:
        """The plan made last, with what would make it fit."""
        made = self._made_last(order)
        try:
            return advised(made, order.job, order.calibration, limits=self._sandboxed(order.job)).plan
        except Exception as error:
            return _refused(error, order.job)

    def written(self, order: Order) -> dict[int, str]:
        """The traces of the plan made last, as JSON text by representative."""
        return {
            each.rank_class.representative: compact_json(wire.to_json(each.trace))
            for each in self._made_last(order).traces
        }

    def overdrawn(self, most_bytes: int) -> int:
        """Returns, with its resident bytes, when this process has more than that. Runs beside the others."""
        while (resident := resident_bytes()) <= most_bytes:
            time.sleep(LOOK_SECONDS)
        return resident

    def resident_bytes(self) -> int:
        return resident_bytes()

    def _kept(self, order: Order, made: Planned) -> Plan:
        self._last = order.plan_id, replace(made, timelines=())
        return made.plan

    def _made_last(self, order: Order) -> Planned:
        if self._last is None or self._last[0] != order.plan_id:
            raise LookupError(f"plan {order.plan_id} was not the last one")
        return self._last[1]

    def _sandboxed(self, job: Job) -> Limits:
        if not job.model.factory:
            return self._limits
        return replace(self._limits, command=sandbox.command(self._limits, job.model.factory_path))


def _refused(error: Exception, job: Job) -> Refused:
    """What is wrong with the job. A fault of ours is raised on, unless the job's own code may have made it."""
    if isinstance(error, PlannerError):
        return Refused(error)
    if not job.model.factory:
        raise error
    return Refused(
        SpecError(
            f"what {job.model.factory} did makes no plan: {type(error).__name__}: {error}",
            allowed="a callable that returns an nn.Module and leaves its process alone",
            place="model.factory",
        )
    )


def resident_bytes() -> int:
    """Of this process. A limit of the address space cannot be set instead: paper reserves a great deal of it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
