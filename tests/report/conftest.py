"""Builders for reports: a small training job as events, and a Llama-shaped plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from planner.events import Alloc, Category, Event, Free, Mark, Origin, Phase, Role
from planner.report.statement import (
    Advice,
    Holder,
    OutsideAllocator,
    Peak,
    PhaseStatement,
    Plan,
    Provenance,
    RankClassStatement,
    Seconds,
    Verdict,
)
from planner.units import GIB, MIB


@dataclass
class Script:
    """Writes events down in the words of the tests."""

    events: list[Event] = field(default_factory=list)
    blocks: int = 0

    def phase(self, phase: Phase, iteration: int = 0) -> None:
        self.events.append(Mark(phase, iteration))

    def alloc(self, size: int, origin: Origin | None = None) -> int:
        self.blocks += 1
        self.events.append(Alloc(self.blocks, size, 0, origin))
        return self.blocks

    def role(self, block: int, category: Category, name: str = "") -> None:
        self.events.append(Role(block, category, name))

    def free(self, *blocks: int) -> None:
        self.events.extend(Free(block) for block in blocks)


def _training() -> list[Event]:
    """Two layers of 1,000 bytes, two iterations of one micro-batch, an optimizer with one state per parameter."""
    script = Script()
    script.phase(Phase.LOAD)
    parameters = []
    for layer in range(2):
        parameters.append(script.alloc(1000, Origin("aten.empty", f"layers.{layer}", (250,), "float32")))
        script.role(parameters[-1], Category.PARAMETER, f"layers.{layer}.weight")
    states: list[int] = []
    for iteration in (1, 2):
        script.phase(Phase.FORWARD, iteration)
        saved = []
        for layer in range(2):
            scratch = script.alloc(3000, Origin("aten.mul", f"layers.{layer}", (750,), "float32"))
            saved.append(script.alloc(2000, Origin("aten.mm", f"layers.{layer}", (500,), "float32")))
            script.free(scratch)
        script.phase(Phase.BACKWARD, iteration)
        gradients = []
        for layer in (1, 0):
            gradients.append(script.alloc(1000, Origin("aten.mm", f"layers.{layer}", (250,), "float32")))
            script.role(gradients[-1], Category.GRADIENT, f"layers.{layer}.weight")
            script.free(saved[layer])
        script.phase(Phase.OPTIMIZER_STEP, iteration)
        if not states:
            for layer in range(2):
                states.append(script.alloc(1000, Origin("aten.zeros_like", "", (250,), "float32")))
                script.role(states[-1], Category.OPTIMIZER_STATE, f"layers.{layer}.weight")
        script.free(*gradients)
    return script.events


def _plan(verdict: Verdict = Verdict.FITS) -> Plan:
    """A Llama-shaped plan with every part of a statement in use."""
    gib = {
        Category.PARAMETER: 29.92, Category.GRADIENT: 14.96, Category.BUCKET: 0.5, Category.OPTIMIZER_STATE: 8.0,
        Category.ACTIVATION: 9.75, Category.TEMPORARY: 1.25, Category.WORKSPACE: 0.0625, Category.INPUT: 0.0001,
    }  # fmt: skip
    at_peak = {each: round(gib.get(each, 0) * GIB) // 512 * 512 for each in Category}
    allocated = sum(at_peak.values())
    reserved = -(-allocated // (2 * MIB)) * 2 * MIB + 512 * MIB
    outside = OutsideAllocator(cuda_context_bytes=778 * MIB, nccl_bytes=896 * MIB)
    device = reserved + outside.total_bytes
    capacity = {Verdict.FITS: 79.10, Verdict.TIGHT: 70.0, Verdict.EXCEEDS: 39.38}[verdict]
    names = [(Phase.LOAD, 0), (Phase.FORWARD, 1), (Phase.BACKWARD, 1), (Phase.OPTIMIZER_STEP, 1),
             (Phase.FORWARD, 2), (Phase.BACKWARD, 2), (Phase.OPTIMIZER_STEP, 2)]  # fmt: skip
    statement = RankClassStatement(
        representative=0,
        ranks="0-7",
        coordinates={"pp": 0, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "tp": 0},
        peak=Peak(
            phase=Phase.BACKWARD,
            iteration=2,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            device_bytes=device,
            interval_bytes=(device - 4 * GIB, device + 5 * GIB),
        ),
        capacity_bytes=round(capacity * GIB),
        verdict=verdict,
        cache_releases=0,
        at_peak=at_peak,
        phases=tuple(
            PhaseStatement(
                phase=phase,
                iteration=iteration,
                peak_allocated_bytes=allocated * (index + 2) // 8 if index < 6 else allocated * 6 // 8,
                peak_reserved_bytes=reserved * min(index + 2, 7) // 7,
                end_allocated_bytes=allocated * (index + 1) // 8,
            )
            for index, (phase, iteration) in enumerate(names)
        ),
        outside_allocator=outside,
        holders=(
            *(
                Holder(
                    bytes=224 * MIB, category=Category.ACTIVATION, module=f"model.layers.{layer}.mlp", op="aten.mm",
                    shape=(8192, 14336), dtype="bfloat16",
                )
                for layer in range(32)
            ),
            Holder(
                bytes=2004 * MIB, category=Category.PARAMETER, module="lm_head", op="aten.empty",
                shape=(128256, 4096), dtype="float32",
            ),
            Holder(bytes=512 * MIB, category=Category.BUCKET, module="bucket 0", op="", shape=(), dtype="", count=2),
        ),
    )  # fmt: skip
    return Plan(
        plan_id="pl-abcdefghijklmnopqrstuvwxyz",
        trace_id="0123456789abcdef",
        calibrated=False,
        gpu="H100-SXM-80GB",
        nodes=1,
        gpus_per_node=8,
        job={
            "metadata": {"name": "llama-8b-sft"},
            "model": {"decoder": {"layers": 32, "hidden": 4096}},
            "train": {"micro_batch_size": 1, "sequence_length": 8192, "precision": "bf16_autocast"},
            "parallel": {"dp_replicate": {"degree": 8}, "dp_shard": {"degree": 1}, "tp": 1},
            "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": {"name": "H100-SXM-80GB"}},
        },
        rank_classes=(statement,),
        advice=()
        if verdict is Verdict.FITS
        else (
            Advice(
                change={"parallel.dp_replicate.gradient_as_bucket_view": True},
                device_bytes=36 * GIB,
                verdict=Verdict.FITS,
            ),
            Advice(
                change={"train.micro_batch_size": 1, "train.gradient_accumulation_steps": 8},
                device_bytes=38 * GIB,
                verdict=Verdict.TIGHT,
            ),
        ),
        provenance=Provenance(
            planner="0.1.0", torch="2.13.0", allocator_rules="torch-2.13", catalog="2025-01", calibration="none"
        ),
        seconds=Seconds(trace=3.25, replay=0.5, total=4.0),
    )


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def training() -> list[Event]:
    return _training()


@pytest.fixture
def plan() -> Callable[..., Plan]:
    return _plan
