"""The training programs that specs are: ordinary scripts, run on paper by plans and on GPUs by `torchrun`."""

from __future__ import annotations

import json
from pathlib import Path

from planner.job.launching.line import Launcher, LaunchLine
from planner.job.loading import bundle, bundle_text
from planner.job.schema import Job

_BUNDLE = 'BUNDLE = ""\n'
"""Where a printed program has its job."""


def launch_line(job: Job, *options: str) -> LaunchLine:
    """How the program of a job is started on its nodes."""
    return LaunchLine(
        launcher=Launcher.TORCHRUN,
        program="planner.programs.train",
        is_module=True,
        arguments=(json.dumps(bundle(job)), *options),
        nodes=job.cluster.nodes,
        processes_per_node=job.cluster.gpus_per_node,
    )


def program_text(job: Job) -> str:
    """The program of a job, with the job in it: `torchrun JOB.py` trains it where planner is installed."""
    name = "train.py" if job.trainer is None else "trainer.py"
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    code = text[text.index("from __future__") :]
    # A quote is in strings of JSON only, which may write it so.
    written = bundle_text(job).strip().replace("'", "\\u0027")
    program = code.replace(_BUNDLE, f"BUNDLE = r'''{written}'''\n")
    return f'"""Trains the job below as one rank: `torchrun --nproc-per-node N THIS_FILE`."""\n\n{program}'
