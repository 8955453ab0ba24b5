"""Where the seconds go from the start of a process to the answer about a job.

Run: python benchmarks/answer_stages.py JOB.yaml

Does what `planner plan` does, stage by stage, and prints the seconds of each as JSON. The stages of the trace are told
apart by the marks that the step gives its recorder.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter() - time.process_time()
"""When this process began, near enough: until here it has done nothing but start the interpreter."""


class Clock:
    """Seconds since the last lap, by name."""

    def __init__(self, began: float) -> None:
        self.last, self.laps = began, dict[str, float]()

    def lap(self, name: str, now: float | None = None) -> None:
        now = time.perf_counter() if now is None else now
        self.laps[name] = self.laps.get(name, 0.0) + now - self.last
        self.last = now


def stages(path: Path) -> dict[str, float]:
    clock = Clock(BEGAN)
    from planner.job.layout import Mesh, rank_classes
    from planner.job.loading import load_job
    from planner.planning.plan import plan_from_traces
    from planner.planning.planned_classes import trace_class

    job = load_job(path)
    clock.lap("interpreter, spec")
    from planner import paper

    clock.lap("import torch, paper's library")
    if job.model.hf_config is not None:
        from planner.training.models import transformers_models  # noqa: F401

    clock.lap("import transformers")
    from planner.events import Phase
    from planner.report.plan_text import render
    from planner.report.statement import Verdict
    from planner.report.style import Style
    from planner.tracing import job_program  # noqa: F401
    from planner.training.phases import Phases

    clock.lap("import planner")
    paper.prepare()
    clock.lap("register operators")
    forwards: list[float] = []

    def note_forward(phase: Phase, _iteration: int) -> None:
        if phase is Phase.FORWARD:
            forwards.append(time.perf_counter())

    classes = rank_classes(Mesh.of(job.parallel))
    with Phases(note_forward).heard():
        traces = [traced for rank_class in classes for traced in trace_class(job, rank_class)]
    clock.lap("build and wrap the model", forwards[0])
    clock.lap("iterations, events")
    found = plan_from_traces(job, traces)
    clock.lap("replay, statement")
    if found.plan.verdict is Verdict.EXCEEDS:
        _advise(job, clock)
    render(found.plan, Style())
    clock.lap("render")
    return clock.laps


def _advise(job: Any, clock: Clock) -> None:
    """Advice plans other jobs: what it traces and what it replays are told apart."""

    def timed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            clock.lap("advice: replays, statements")
            result = function(*arguments, **named)
            clock.lap(name)
            return result

        return run

    from planner.planning import planned_classes
    from planner.searching.advice import advise
    from planner.searching.exact_plans import PlansHere

    traced = planned_classes.trace_class
    planned_classes.trace_class = timed(lambda *arguments, **named: list(traced(*arguments, **named)), "advice: traces")
    advise(job, PlansHere())
    clock.lap("advice: replays, statements")


if __name__ == "__main__":
    json.dump(stages(Path(sys.argv[1])), sys.stdout)
