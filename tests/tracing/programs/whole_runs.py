"""Every step of a job on the paper GPU, none left out and none folded, with the phases that it names."""

from __future__ import annotations

from collections.abc import Sequence

from planner import paper
from planner.events import Event
from planner.job.schema import Job
from planner.training import step
from planner.training.phases import Phases


def events_of_whole_run(job: Job) -> Sequence[Event]:
    with paper.gpu("sm_90") as gpu:
        recorder = gpu.recorder
        with Phases(lambda phase, iteration: recorder.mark_at(recorder.now(), phase, iteration)).heard():
            outcome = step.run(job, gpu.device)
        events = recorder.events()
        del outcome
    return events
