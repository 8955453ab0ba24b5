"""Run as a program: a job on the paper GPU, followed by the recorder of `planner measure` too; prints both as JSON.

The figures that the recorder finds there under `torch.cuda` are those of planner's replay.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

from planner.job.loading import bundle, load_yaml
from planner.tracing import job_program
from planner.truth.measuring.measure import make_setting
from planner.truth.measuring.measurement_lines import most_by_category, phases_of

MEASURED = """
import json, runpy, sys
import torch
from planner.truth.measuring import job_rank, rank_recorder
setting, bundle, folder = sys.argv[1:]
recorder = rank_recorder.Recorder(torch, folder)
recorder.keep_peaks()
recorder.job = job_rank.begin(recorder, json.loads(setting))
sys.argv = ["train", bundle]
left = runpy.run_module("planner.programs.train", run_name="__main__")
recorder.end()
"""


def main(spec: str, folder: str) -> None:
    job = load_yaml(spec)
    program = Path(folder, "measured.py")
    program.write_text(MEASURED, encoding="utf-8")
    setting = json.dumps(asdict(make_setting(job, "cuda")))
    launch_line = job_program.launch_line

    def with_recorder(run: Any, *options: str) -> Any:
        line = launch_line(run, *options)
        arguments = (setting, json.dumps(bundle(run)), folder)
        return replace(line, program=str(program), is_module=False, arguments=arguments)

    with mock.patch.object(job_program, "launch_line", with_recorder):
        events = job_program.trace(job).written_out()
    planned = [
        [each.phase, each.iteration, each.peak.requested_bytes, each.end.requested_bytes] for each in phases_of(events)
    ]
    (measured,) = Path(folder).glob("*.json")
    print(
        json.dumps(
            {
                "planned": {"phases": planned, "categories": most_by_category(events)},
                "measured": json.loads(measured.read_text(encoding="utf-8")),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
