"""Processor seconds that the report takes for a million events: statement, text, JSON, page of the timeline.

Run: python benchmarks/report_speed.py

The events are those of a synthetic training: layers whose activations live from the forward to the backward, gradients,
optimizer state, temporaries around each. What the allocator makes of them is worked out before and is not counted.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from planner.allocator.replay import replay
from planner.allocator.timeline import Timeline
from planner.events import Alloc, Category, Event, Free, Mark, Origin, Phase, Role
from planner.report.attribution import state_rank_class
from planner.report.html_pages import ClassTimeline, render_page
from planner.report.plan_text import render
from planner.report.statement import OutsideAllocator, Plan, Provenance, RankClassStatement, to_json
from planner.report.style import Style
from planner.units import GIB, KIB

EVENTS = 1_000_000
_LAYERS, _BLOCKS = 100, 20
"""Layers of the model, and blocks of each of them that live until the backward."""


def training(count: int = EVENTS) -> tuple[Event, ...]:
    """At least `count` events: parameters, then iterations with a temporary beside every activation and gradient."""
    events: list[Event] = [Mark(Phase.LOAD)]
    numbers = iter(range(count))
    parameters = [_born(events, numbers, f"layers.{layer}", Category.PARAMETER) for layer in range(_LAYERS)]
    iteration = 0
    while len(events) < count:
        iteration += 1
        events.append(Mark(Phase.FORWARD, iteration))
        kept = [list(_forward(events, numbers, layer)) for layer in range(_LAYERS)]
        events.append(Mark(Phase.BACKWARD, iteration))
        gradients = [_backward(events, numbers, layer, kept[layer]) for layer in reversed(range(_LAYERS))]
        events.append(Mark(Phase.OPTIMIZER_STEP, iteration))
        if iteration == 1:
            for layer in range(_LAYERS):
                _born(events, numbers, f"layers.{layer}", Category.OPTIMIZER_STATE)
        events += [Free(block) for block in gradients]
    events += [Free(block) for block in parameters]
    return tuple(events)


def _born(events: list[Event], numbers: Iterator[int], module: str, category: Category | None = None) -> int:
    block = next(numbers)
    size = (block % 97 + 1) * 64 * KIB
    events.append(Alloc(block, size, 0, Origin("aten.mm", module, (size // 4,), "float32")))
    if category is not None:
        events.append(Role(block, category, f"{module}.weight"))
    return block


def _forward(events: list[Event], numbers: Iterator[int], layer: int) -> Iterator[int]:
    for part in range(_BLOCKS):
        yield _born(events, numbers, f"layers.{layer}.part.{part}")
        events.append(Free(_born(events, numbers, f"layers.{layer}.part.{part}")))


def _backward(events: list[Event], numbers: Iterator[int], layer: int, kept: list[int]) -> int:
    for block in reversed(kept):
        events.append(Free(_born(events, numbers, f"layers.{layer}")))
        events.append(Free(block))
    return _born(events, numbers, f"layers.{layer}", Category.GRADIENT)


def stated(events: tuple[Event, ...], timeline: Timeline) -> RankClassStatement:
    return state_rank_class(
        representative=0, ranks="0-7", coordinates={"dp_shard": 0}, events=events, unlimited=timeline, capped=timeline,
        outside=OutsideAllocator(cuda_context_bytes=GIB), interval=lambda held: (held, held), capacity_bytes=80 * GIB,
    )  # fmt: skip


def planned(statement: RankClassStatement) -> Plan:
    from planner.job import loading
    from planner.job.schema import Decoder, Job, Model

    decoder = Decoder(layers=_LAYERS, hidden=64, heads=4, kv_heads=4, ffn=128, vocab=256)
    return Plan(
        plan_id="pl-0", trace_id="0", calibrated=False, gpu="", nodes=1, gpus_per_node=1,
        job=loading.bundle(Job(model=Model(decoder=decoder))),
        rank_classes=(statement,),
        provenance=Provenance(planner="", torch="", allocator_rules="", catalog="", calibration=""),
    )  # fmt: skip


def measure(count: int = EVENTS) -> dict[str, float]:
    """Processor seconds of each part, by its name; and how many events there were."""
    events = training(count)
    timeline = replay(events)
    gc.collect()
    gc.freeze()  # as the command does, which does not look through what it keeps
    seconds: dict[str, float] = {"events": len(events)}

    def timed(what: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = work()
        seconds[what] = time.process_time() - began
        return result

    statement = timed("statement", lambda: stated(events, timeline))
    plan = planned(statement)
    timed("text", lambda: render(plan, Style()))
    timed("JSON", lambda: json.dumps(to_json(plan), indent=2))
    timed("timeline page", lambda: render_page(plan, [ClassTimeline(statement, events, timeline)]))
    return seconds


def main() -> None:
    json.dump(measure(), sys.stdout)


if __name__ == "__main__":
    main()
