"""`planner gpu-truth`: ten usual steps on the GPU of this machine beside their plans, learnt as facts about that GPU.

Each step is measured and planned in a process of its own, one at a time, so that what the driver counts is its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planner.errors import MeasureError
from planner.job.bundle import bundle
from planner.job.loading import load_document
from planner.job.schema import Job
from planner.measuring import store
from planner.measuring.measurement import Measurement
from planner.planning.learnt_facts import LearntFacts, group_of, learn_facts
from planner.runtime import answers, running
from planner.runtime.limits import UNLIMITED
from planner.runtime.task import Task

_MEASURE = "planner.measuring.measure_cases:measure_one"
_PLAN = "planner.planning.step_on_paper:plan_one"
_DECODER = {"decoder": {"layers": 12, "hidden": 1024, "heads": 16, "kv_heads": 8, "ffn": 2816, "vocab": 32000}}
_GPT2, _RESNET, _VIT = ({"hf_config": {"model_type": name}} for name in ("gpt2", "resnet", "vit"))
_TEXT, _IMAGES = {"micro_batch_size": 4, "sequence_length": 1024}, {"micro_batch_size": 32}
_AUTOCAST = {"precision": "bf16_autocast"}
_STEPS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "decoder-fp32": (_DECODER, _TEXT),
    "decoder-bf16-autocast": (_DECODER, {**_TEXT, **_AUTOCAST}),
    "decoder-bf16-pure": ({**_DECODER, "parameter_dtype": "bfloat16"}, _TEXT),
    "decoder-recomputed": (_DECODER, {**_TEXT, **_AUTOCAST, "recompute": "full"}),
    "gpt2-fp32": (_GPT2, _TEXT),
    "gpt2-bf16-autocast": (_GPT2, {**_TEXT, **_AUTOCAST}),
    "gpt2-bf16-fused": (_GPT2, {**_TEXT, **_AUTOCAST, "optimizer": {"name": "AdamW", "fused": True}}),
    "resnet50-fp32": (_RESNET, {**_IMAGES, "optimizer": {"name": "SGD", "lr": 0.1, "momentum": 0.9}}),
    "resnet50-bf16-autocast": (_RESNET, {**_IMAGES, **_AUTOCAST}),
    "vit-bf16-autocast": (_VIT, {**_IMAGES, **_AUTOCAST}),
}
"""Model and training of each: ten that differ weigh two thirds of what calibration may learn (docs/calibration.md)."""
Line = Callable[[Job], Measurement]


def usual_steps() -> list[Job]:
    """The steps, for one GPU: which one it is they are told when they are planned."""
    cluster = {"gpus_per_node": 1, "gpu": {"total_bytes": "80GiB", "arch": "sm_90"}}
    return [
        load_document({"metadata": {"name": name}, "model": model, "train": train, "cluster": cluster}, name)
        for name, (model, train) in _STEPS.items()
    ]


def learn_gpu(
    out: Path,
    steps: Sequence[Job],
    say: Callable[[str], None],
    *,
    device: str = "cuda",
    measured: Line | None = None,
) -> tuple[LearntFacts, list[str]]:
    """Measures and plans the steps, and writes what they teach into the folder `out`, with the lines of both.

    What was learnt, and the names of the steps that failed, whose reasons are told. `measured` stands in for the device
    (default: a process that measures on it). Raises FactsError after the first step if the GPU is not in the catalog,
    MeasureError if no step could be measured.
    """
    of_device: list[Measurement] = []
    of_paper: list[Measurement] = []
    failed = []
    for job in steps:
        name = job.metadata.name
        try:
            here = (measured or partial(in_a_child, _MEASURE, {"device": device}))(job)
            group_of([here], [here])
            there = in_a_child(_PLAN, {"device": "paper:", "gpu": here.device.name}, job)
        except MeasureError as error:
            failed.append(name)
            say(f"{name}: {error.problem}")
            continue
        of_device.append(here)
        of_paper.append(there)
        store.append(out / "measurements.jsonl", [here])
        store.append(out / "paper.jsonl", [there])
        say(f"{name}: {there.peak.reserved_bytes:,} B reserved planned, {here.peak.reserved_bytes:,} B measured")
    if not of_device:
        raise MeasureError("no step could be measured", remedy="see what each of them said")
    return learn_facts(of_device, of_paper, out), failed


def in_a_child(function: str, more: Mapping[str, str], job: Job) -> Measurement:
    """The line of one step, by a function for children. Raises MeasureError with what went wrong in its process."""
    with TemporaryDirectory(prefix="planner-gpu-truth-") as folder:
        line = Path(folder) / "line.jsonl"
        asked = {"name": job.metadata.name, "job": bundle(job), "out": str(line), **more}
        environment = {**os.environ, "KINETO_LOG_LEVEL": "99", "TOKENIZERS_PARALLELISM": "false"}
        ended = running.run(Task(function, asked), UNLIMITED, environment=environment)
        error = answers.error_of(ended)
        trouble = error.problem if error else answers.fault_line(ended)
        if trouble or ended.exit_code:
            raise MeasureError(trouble or answers.ending(ended))
        return store.read(line)[-1]
