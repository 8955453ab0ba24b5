"""Reads what a program asks a search, one JSON object, strictly; and the axes that are usual where it names none."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from planner.errors import SpecError
from planner.hardware import catalog
from planner.job import named_gpus
from planner.job.json_text import canonical_json
from planner.job.layout import AXES
from planner.job.loading import BUNDLE_SCHEMA, bundle, job_on_gpu, load_bundle, load_document
from planner.job.nodes import did_you_mean
from planner.job.schema import Job
from planner.job.shorthand import WITHOUT_BF16
from planner.searching.axes import DOUBLING, Axis, axis_of, parse
from planner.searching.space import Space, global_batch_of, usual_axes
from planner.searching.weighing import Objective, objective_of, refuse_inapplicable

DEGREE_WORDS = {"fsdp": "dp_shard", "ddp": "dp_replicate", "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep"}
"""Axes of parallelism by the words that say a degree in a few words."""


def axes_of_degrees(degrees: Mapping[str, object]) -> list[str]:
    """Degrees by their words, as axes of one value. True is all ranks that no other axis takes: it leaves the other
    kind of data parallelism none."""
    axes: dict[str, object] = {}
    for word, degree in degrees.items():
        if degree is True:
            axes[DEGREE_WORDS["ddp" if word == "fsdp" else "fsdp"]] = 1
        elif degree:
            axes[DEGREE_WORDS[word]] = degree
    return [f"{axis}={degree}" for axis, degree in axes.items()]


def read_gpus(written: str, names: Sequence[str], option: Callable[[str], str] = str) -> named_gpus.GpuCount:
    """How many GPUs there are, and which. Raises SpecError where `names` say another."""
    count = named_gpus.parse(written, option("gpus"))
    if count.name and names:
        raise SpecError(
            f"{option('gpus')} names {count.name}, and {option('gpu')} {', '.join(names)}",
            allowed="one of the two",
            place=option("gpu"),
        )
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJob:
    """A job whose layout is left to the search, on its GPUs."""

    job: Job
    gpus: int
    per_node: int
    global_batch: int
    gpu_names: tuple[str, ...]
    """Several, where they are compared."""


USUAL_SECONDS = 120.0
USUAL_TOP = 10
MOST_TOP = 100
_LARGEST = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """A search that was asked for, as it is sent and stored; what it means, :meth:`space` says."""

    job: Job
    gpus: str = ""
    """As on the command line; empty: as many as the job has."""
    gpu: tuple[str, ...] = ()
    """Several are compared."""
    axes: tuple[str, ...] = ()
    objective: Objective = Objective.COST
    top: int = USUAL_TOP
    global_batch: int = 0
    """0: that of the job."""
    seconds: float = USUAL_SECONDS

    def placed(self, option: Callable[[str], str] = str) -> PlacedJob:
        """The job on the GPUs that are asked for; `option` is how the caller writes the name of a field. Raises
        SpecError."""
        job, names = self.job, self.gpu
        gpus, per_node = job.cluster.ranks, job.cluster.gpus_per_node
        if self.gpus:
            count = read_gpus(self.gpus, names, option)
            gpus, per_node = count.nodes * count.gpus_per_node, count.gpus_per_node
            names = names or ((count.name,) if count.name else ())
        if names:
            job = job_on_gpu(job, names[0], place=option("gpu"))
        batch = global_batch_of(job) * (gpus if job.cluster.ranks == 1 else 1)
        return PlacedJob(
            job=job, gpus=gpus, per_node=per_node, gpu_names=names, global_batch=self.global_batch or batch
        )

    def space(self, option: Callable[[str], str] = str) -> Space:
        """The candidates: an axis of parallelism restricts the layouts, `gradient_accumulation_steps` lets the global
        batch vary. Raises SpecError for axes, GPUs or an objective that do not go with the job."""
        placed, written = self.placed(option), axes_of(self.axes)
        refuse_inapplicable(self.objective, placed.job, option("objective"))
        degrees = {
            axis.name: [change[f"parallel.{axis.name}.degree"] for change in axis.values]
            for axis in written
            if axis.name in AXES
        }
        usual = usual_axes(placed.job, placed.gpus, placed.per_node, placed.global_batch, degrees)
        axes = {axis.name: axis for axis in usual}
        if len(placed.gpu_names) > 1:
            axes["gpu"] = axis_of("gpu", list(placed.gpu_names), "--gpu")
        axes |= {axis.name: axis for axis in written if axis.name not in AXES}
        batch = 0 if "gradient_accumulation_steps" in axes else placed.global_batch
        return Space.varying(placed.job, axes.values(), batch)

    def search_id(self, under: str) -> str:
        """`se-` and 26 base32 characters of what is asked for and what decides the answer (`under`); the time that it
        may take is no part of it, and neither are metadata."""
        parts = {key: value for key, value in to_json(self).items() if key != "seconds"}
        parts["job"] = {key: value for key, value in parts["job"].items() if key != "metadata"}
        digest = hashlib.sha256(canonical_json({**parts, "under": under}).encode()).digest()
        return "se-" + base64.b32encode(digest).decode().lower()[:26]


KEYS = tuple(field.name for field in fields(SearchRequest))


def read(body: Mapping[str, Any], most_seconds: float) -> SearchRequest:
    """The request of a body. Raises SpecError with the key that is wrong."""
    for key in body:
        if key not in KEYS:
            raise SpecError(
                f"there is no key `{str(key)[:80]}`", allowed=", ".join(KEYS), remedy=did_you_mean(str(key), KEYS),
                place=str(key)[:80],
            )  # fmt: skip
    if "job" not in body:
        raise SpecError("job is missing", allowed=_A_JOB, place="job")
    job, gpus, gpu = read_job_member(body["job"]), body.get("gpus", ""), body.get("gpu", ())
    if isinstance(gpus, bool) or not isinstance(gpus, str | int):
        raise SpecError(f"gpus is {_shown(gpus)}", allowed='a number, or a text such as "8x8xH100"', place="gpus")
    names = gpu.split(",") if isinstance(gpu, str) else gpu
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise SpecError(f"gpu is {_shown(names)}", allowed="a text, or a list of texts", place="gpu")
    axes, objective = written_axes(body.get("axes", ())), objective_of(str(body.get("objective", "cost")), "objective")
    top = _whole(body.get("top", USUAL_TOP), "top", MOST_TOP)
    global_batch = _whole(body["global_batch"], "global_batch", _LARGEST) if "global_batch" in body else 0
    seconds = body.get("seconds", min(USUAL_SECONDS, most_seconds))
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= most_seconds:
        raise SpecError(
            f"seconds is {_shown(seconds)}", allowed=f"more than 0, at most {most_seconds:g}", place="seconds",
            remedy="a search that was ended by its time goes on where it was when it is asked for again",
        )  # fmt: skip
    return SearchRequest(
        job=job, gpus=str(gpus), gpu=tuple(name.strip() for name in names if name.strip()), axes=axes,
        objective=objective, top=top, global_batch=global_batch, seconds=float(seconds),
    )  # fmt: skip


def to_json(request: SearchRequest) -> dict[str, Any]:
    """As :func:`read` reads it."""
    written = {name: getattr(request, name) for name in KEYS} | {"job": bundle(request.job)}
    written |= {"gpu": list(request.gpu), "axes": list(request.axes), "objective": request.objective.value}
    return {key: value for key, value in written.items() if value not in ("", [], 0)}


_A_JOB = f"a bundle ({BUNDLE_SCHEMA}), or a spec in JSON"


def read_job_member(given: Any) -> Job:
    """The member `job` of a body. Raises SpecError."""
    if not isinstance(given, Mapping):
        raise SpecError("the job is not an object", allowed=_A_JOB, place="job")
    return load_bundle(given, "job") if "schema" in given else load_document(given, "job")


def written_axes(given: Any) -> tuple[str, ...]:
    """A list of `name=values`, or an object of names with their values."""
    if isinstance(given, Mapping):
        given = [f"{name}={_written_values(values, str(name))}" for name, values in given.items()]
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(axis, str) for axis in given):
        raise SpecError(
            f"axes is {_shown(given)}", allowed='["recompute=none,full", "tp=1..8"], or {"tp": "1..8"}', place="axes"
        )
    return tuple(given)


def _written_values(values: Any, name: str) -> str:
    if isinstance(values, Mapping):
        raise SpecError(f"the values of {name[:80]} are an object", allowed="a value, or a list of them", place="axes")
    several = values if isinstance(values, list) else [values]
    return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in several)


def axes_of(written: Sequence[str], step: str = DOUBLING) -> list[Axis]:
    """The axes of `name=values`, ranges in this step where they say none. Raises SpecError, also for one that is given
    twice."""
    axes: dict[str, Axis] = {}
    for axis in (parse(each, step) for each in written):
        if axis.name in axes:
            raise SpecError(f"{axis.name} is given twice", allowed="each axis once", remedy="write its values in one",
                            place="axes")  # fmt: skip
        axes[axis.name] = axis
    return list(axes.values())


def gpu_of_base(axes: Sequence[Axis], words_gpus: str, words_gpu: str) -> str:
    """Which GPU the job stands on before it is varied: what the words say, else, of an axis of GPUs, the first whole
    one that computes in bfloat16, since what is supposed of the job holds for every point. Raises SpecError."""
    named = words_gpu or (named_gpus.parse(words_gpus).name if words_gpus else "")
    values = [label for axis in axes if axis.name == "gpu" for label in axis.labels]
    if named or not values:
        return words_gpu
    records = {label: catalog.by_name(label) for label in values}
    whole = [label for label, gpu in records.items() if gpu is None or not gpu.slice] or values
    modern = (label for label in whole if (gpu := records[label]) is None or gpu.arch not in WITHOUT_BF16)
    return next(modern, whole[0])


def _whole(given: Any, place: str, most: int) -> int:
    if type(given) is not int or not 1 <= given <= most:
        raise SpecError(f"{place} is {_shown(given)}", allowed=f"a whole number from 1 to {most}", place=place)
    return given


def _shown(value: Any) -> str:
    return "an object" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else f"{value!a:.80}"
