"""How the program of a spec is started: its launch line, its text with the job in it, and the files that it takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.job.launching.line import Launcher, LaunchLine
from planner.job.loading import bundle, bundle_text
from planner.job.printing import plain_yaml
from planner.job.schema import Job

_BUNDLE = 'BUNDLE = ""\n'
"""Where a printed program has its job."""


def launch_line(job: Job, *options: str) -> LaunchLine:
    """How the program of a job without `trainer` is started on its nodes."""
    return LaunchLine(
        launcher=Launcher.TORCHRUN,
        program="planner.programs.train",
        is_module=True,
        arguments=(json.dumps(bundle(job)), *options),
        nodes=job.cluster.nodes,
        processes_per_node=job.cluster.gpus_per_node,
    )


def trainer_command(job: Job, folder: Path) -> list[str]:
    """How the program of a job with `trainer` is started on its nodes; the files that it takes are written to
    `folder`."""
    assert job.trainer is not None
    cluster, conf = job.cluster, job.allocator.conf
    spec = _write(folder / "job.json", json.dumps(bundle(job)))
    words = ["env", f"PYTORCH_ALLOC_CONF={conf}"] if conf else []
    if job.trainer.accelerate:
        config = _write(folder / "accelerate.yaml", plain_yaml(dict(_with_files(job.trainer.accelerate, folder))))
        words += ["accelerate", "launch", "--config_file", config]
        words += ["--num_machines", str(cluster.nodes), "--num_processes", str(cluster.ranks)]
    else:
        words += ["torchrun", "--nnodes", str(cluster.nodes), "--nproc-per-node", str(cluster.gpus_per_node)]
    return [*words, "-m", "planner.programs.trainer", spec]


def program_text(job: Job) -> str:
    """The program of a job, with the job in it: `torchrun JOB.py` trains it where planner is installed."""
    name = "train.py" if job.trainer is None else "trainer.py"
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    code = text[text.index("from __future__") :]
    # A quote is in strings of JSON only, which may write it so.
    written = bundle_text(job).strip().replace("'", "\\u0027")
    program = code.replace(_BUNDLE, f"BUNDLE = r'''{written}'''\n")
    return f'"""Trains the job below as one rank: `torchrun --nproc-per-node N THIS_FILE`."""\n\n{program}'


def _write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def _with_files(config: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Any]]:
    """accelerate's config, the file that it names written again."""
    for key, value in config.items():
        if key == "deepspeed_config" and isinstance(value, Mapping):
            yield key, dict(_with_files(value, folder))
        elif key == "deepspeed_config_file" and isinstance(value, Mapping):
            yield key, _write(folder / "deepspeed.json", json.dumps(value))
        else:
            yield key, value
