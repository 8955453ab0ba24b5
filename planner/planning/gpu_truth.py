"""`planner gpu-truth`: measures usual steps on this GPU and on paper, and turns the differences into facts."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planner.errors import FactsError, MeasureError
from planner.hardware import catalog
from planner.hardware.facts import OBSERVATIONS, read_lines, state_of
from planner.job import loading
from planner.job.loading import bundle, load_bundle, load_document
from planner.job.overhead import outside
from planner.job.schema import Gpu, Job, Software
from planner.planning import identity
from planner.planning.plan import plan_job
from planner.runtime import messages, running
from planner.runtime.limits import UNLIMITED
from planner.runtime.messages import AnswerWriter, Task
from planner.truth.calibration.interval import Calibration, observation_from_json, observation_to_json
from planner.truth.calibration.learning import Coverage, cover_left_out
from planner.truth.calibration.observation import Observation, observe
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measure import make_setting, measure
from planner.truth.measuring.measurement_lines import DeviceFacts, Levels, MeasuredPhase, Measurement, phases_of
from planner.truth.plan_comparison import class_of
from planner.units import GIB
from planner.versions import minor_of

_USUAL_ARCH = "sm_90"
_ROOMY_BYTES = 1024 * GIB
"""Of a GPU that nobody named: what a step takes is asked for, not whether it fits."""


def plan_one(asked: Mapping[str, Any], _: AnswerWriter) -> None:
    """The child's side: one line more in the file `out`. `job` is a bundle; `gpu` the name of a device that has run it,
    else `device` is `paper:sm_90`, say."""
    arch = asked["device"].partition(":")[2] or _USUAL_ARCH
    job = load_bundle(asked["job"], asked["name"])
    named = catalog.by_any_name(asked.get("gpu") or "")
    gpu = _gpu_named(asked["gpu"]) if named else Gpu(total_bytes=_ROOMY_BYTES, arch=arch)
    line = on_paper(job, gpu, rank=asked.get("rank", 0), case=asked["name"])
    measurement_lines.append(Path(asked["out"]), [line])


def on_paper(job: Job, gpu: Gpu, *, rank: int = 0, case: str = "") -> Measurement:
    """What the step of one rank takes on paper, phase by phase, with the torch that is installed and no calibration."""
    software = Software(torch=identity.installed_torch(), cuda=job.software.cuda)
    placed = replace(job, cluster=replace(job.cluster, gpu=gpu), software=software)
    result = plan_job(placed, Calibration.none())
    statement = class_of(result.plan, rank)
    requested = {(phase.phase, phase.iteration): phase for phase in phases_of(result.events_of(rank))}
    phases = []
    for phase in statement.phases:
        asked = requested.get((phase.phase, phase.iteration))
        peak, end = (asked.peak, asked.end) if asked else (Levels(), Levels())
        phases.append(
            MeasuredPhase(
                phase=phase.phase,
                iteration=phase.iteration,
                peak=Levels(
                    requested_bytes=peak.requested_bytes,
                    allocated_bytes=phase.peak_allocated_bytes,
                    active_bytes=phase.peak_allocated_bytes,
                    reserved_bytes=phase.peak_reserved_bytes,
                ),
                end=Levels(requested_bytes=end.requested_bytes, allocated_bytes=phase.end_allocated_bytes),
            )
        )
    return Measurement(
        case=case or job.metadata.name,
        job=loading.bundle(placed),
        device=DeviceFacts(kind="paper", name=gpu.name, total_bytes=gpu.total_bytes, arch=gpu.arch),
        software=dict(identity.software()),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        phases=tuple(phases),
        rank=rank,
        peers="absent" if len(result.plan.rank_classes) > 1 else "none",
        allocator_conf=job.allocator.conf,
        seconds=result.plan.seconds.total,
    )


def gpu_of(device: DeviceFacts) -> Gpu:
    """The GPU of a measurement: by the catalog's name where it has one, with the memory that the driver says."""
    known = _gpu_named(device.name)
    return replace(known, total_bytes=device.total_bytes or known.total_bytes, arch=device.arch or known.arch)


def _gpu_named(name: str) -> Gpu:
    records = catalog.by_any_name(name)
    if len(records) != 1:
        return Gpu(total_bytes=0, arch="")
    return Gpu(name=records[0].name, total_bytes=records[0].total_bytes, arch=records[0].arch)


_OF_THE_STEP = ("model", "train", "parallel", "allocator")
"""Sections of a bundle: GPU and software are told by the measurement itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntFacts:
    """What was written; `coverage` is of the group's observations."""

    gpu: str
    torch: str
    observations: int
    coverage: Coverage

    def describe(self) -> str:
        """For a terminal."""
        covered = self.coverage
        lines = [
            f"{self.gpu} with torch {self.torch}: {self.observations} observed steps",
            f"left out one by one, {covered.covered} of {covered.observations} steps lie in the interval of the others",
            *(f"  outside: {case}" for case in covered.outside),
        ]
        return "\n".join(lines) + "\n"


def learn_facts(device: Sequence[Measurement], paper: Sequence[Measurement], folder: Path) -> LearntFacts:
    """Writes what is to be learnt into the folder, beside what other GPUs and versions taught.

    A step that was measured before gives way. Raises FactsError where the two are not of one torch, or the device is no
    GPU of the catalog.
    """
    gpu, torch = group_of(device, paper)
    file_name = f"{OBSERVATIONS}-{gpu}-torch-{torch}.jsonl"
    known = tuple(state for state in state_of(folder, OBSERVATIONS) if state[0].name == file_name)
    steps = [observation_from_json(document, place) for place, document in read_lines(known)]
    by_case = {step.case: step for step in (*steps, *_observations(device, paper, gpu))}
    lines = [f"{json.dumps(observation_to_json(step), separators=(',', ':'))}\n" for step in by_case.values()]
    if lines:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file_name).write_text("".join(lines), encoding="utf-8")
    return LearntFacts(gpu=gpu, torch=torch, observations=len(by_case), coverage=cover_left_out(list(by_case.values())))


def group_of(device: Sequence[Measurement], paper: Sequence[Measurement]) -> tuple[str, str]:
    """The GPU by the catalog's name, and torch's major and minor version. Raises FactsError as `learn_facts`."""
    names = {line.device.name for line in device if line.device.kind == "cuda"}
    if len(names) != 1 or len(records := catalog.by_any_name(names.copy().pop())) != 1:
        raise FactsError(
            f"the measurements are of {', '.join(sorted(names)) or 'no GPU'}",
            allowed="measurements of one GPU that the catalog knows",
            remedy="add a record to planner/hardware/gpus.toml, or measure each GPU into a folder of its own",
        )
    versions = {minor_of(line.software["torch"]) for line in (*device, *paper) if "torch" in line.software}
    if len(versions) != 1:
        raise FactsError(
            f"the measurements and their counterparts on paper are of torch {' and '.join(sorted(versions))}",
            allowed="one version: kernels change with it",
            remedy="make the counterparts with the torch of the device",
        )
    return records[0].name, versions.pop()


def _observations(device: Sequence[Measurement], paper: Sequence[Measurement], gpu: str) -> Iterable[Observation]:
    planned = {line.case: line for line in paper if line.phases and line.job and not line.error}
    for line in device:
        other = planned.get(line.case)
        if other is None or line.device.kind != "cuda" or not line.phases or line.error:
            continue
        if any(line.job.get(section) != other.job.get(section) for section in _OF_THE_STEP):
            continue  # on paper it was another size
        software = Software(torch=line.software.get("torch", ""), cuda=line.software.get("cuda", ""))
        yield observe(
            line,
            gpu=gpu,
            predicted_reserved_bytes=other.peak.reserved_bytes,
            around=outside(gpu_of(line.device), software, ()),
        )


_PLAN = "planner.planning.gpu_truth:plan_one"
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
    (default: it is measured). Raises FactsError after the first step if the GPU is not in the catalog,
    MeasureError if no step could be measured.
    """
    of_device: list[Measurement] = []
    of_paper: list[Measurement] = []
    failed = []
    for job in steps:
        name = job.metadata.name
        try:
            here = measured(job) if measured else measure(job, make_setting(job, device))
            group_of([here], [here])
            there = _plan_in_a_child(here.device.name, job)
        except MeasureError as error:
            failed.append(name)
            say(f"{name}: {error.problem}")
            continue
        of_device.append(here)
        of_paper.append(there)
        measurement_lines.append(out / "measurements.jsonl", [here])
        measurement_lines.append(out / "paper.jsonl", [there])
        say(f"{name}: {there.peak.reserved_bytes:,} B reserved planned, {here.peak.reserved_bytes:,} B measured")
    if not of_device:
        raise MeasureError("no step could be measured", remedy="see what each of them said")
    return learn_facts(of_device, of_paper, out), failed


def _plan_in_a_child(gpu: str, job: Job) -> Measurement:
    """The job on paper, for this GPU. Raises MeasureError with what went wrong in its process."""
    with TemporaryDirectory(prefix="planner-gpu-truth-") as folder:
        line = Path(folder) / "line.jsonl"
        asked = {"name": job.metadata.name, "job": bundle(job), "out": str(line), "device": "paper:", "gpu": gpu}
        environment = {**os.environ, "KINETO_LOG_LEVEL": "99", "TOKENIZERS_PARALLELISM": "false"}
        ended = running.run(Task(_PLAN, asked), UNLIMITED, environment=environment)
        error = messages.error_of(ended)
        trouble = error.problem if error else messages.fault_line(ended)
        if trouble or ended.exit_code:
            raise MeasureError(trouble or messages.ending(ended))
        return measurement_lines.read(line)[-1]
