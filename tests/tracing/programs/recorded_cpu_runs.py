"""Real runs on a CPU, kept beside the tests: measured once, with the software that they were measured with.

A recording stands for the runs of the same jobs with the same software. With other software all is measured again where
it is asked for; other jobs with the same software are an error, or each test run would measure them, unnoticed.
PLANNER_CPU_RUNS=record measures all and writes what it finds; PLANNER_CPU_RUNS=measure does not look at what is
recorded.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import lzma
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from planner.job.schema import AS_BUILT, Job
from planner.tracing import rank_trace
from planner.tracing.rank_trace import Trace
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measurement_lines import from_json

FOLDER = Path(__file__).parents[2] / "data" / "cpu_runs"
MODE = os.environ.get("PLANNER_CPU_RUNS", "")
_PACKAGES = ("torch", "transformers", "deepspeed", "peft")
_HERE = str(Path(__file__).parent)

Worlds = Sequence[tuple[Sequence[Job], int]]
Answers = dict[tuple[str, int], dict[str, Any]]
"""By the job's name and the rank: events, the reducer's account of its buckets, the measurement."""


def read(name: str, worlds: Worlds) -> Answers | None:
    """What was recorded of these jobs under this name; None if nothing was, or with other software.

    Raises AssertionError where a job is not as it was when it was recorded.
    """
    path = _path(name)
    if MODE or not path.exists():
        return None
    lines = iter(_text(path).splitlines())
    if json.loads(next(lines)) != _software():
        return None
    found: Answers = {}
    digests = {}
    for about in map(json.loads, lines):
        trace = rank_trace.loads("\n".join(next(lines) for _ in range(about["lines"])))
        which = about["job"], about["rank"]
        digests[which] = about["digest"]
        found[which] = {
            "events": list(trace.events), "ddp": about["ddp"], "measurement": from_json(about["measurement"]),
        }  # fmt: skip
    asked = _digests(worlds)
    stale = sorted({job for (job, rank), digest in asked.items() if digests.get((job, rank)) != digest})
    assert not stale, (
        f"{path.name} has no run of {', '.join(stale)} as the jobs are now: record them (make cpu-runs), or set "
        "PLANNER_CPU_RUNS=measure to run them now"
    )
    return {which: found[which] for which in asked}


def write(name: str, worlds: Worlds, answers: Answers) -> None:
    """Keep what was measured, if that is asked for."""
    if MODE != "record":
        return
    FOLDER.mkdir(exist_ok=True)
    text = "\n".join(_lines(worlds, answers)) + "\n"
    _path(name).write_bytes(lzma.compress(text.encode(), preset=9))


def _lines(worlds: Worlds, answers: Answers) -> Iterator[str]:
    yield json.dumps(_software())
    for (job, rank), digest in _digests(worlds).items():
        answer = answers[job, rank]
        events = rank_trace.dumps(Trace(events=tuple(answer["events"])))
        measurement = json.loads(measurement_lines.line(answer["measurement"]))
        about = {"job": job, "rank": rank, "digest": digest, "lines": events.count("\n") + 1}
        yield json.dumps({**about, "ddp": answer["ddp"], "measurement": measurement})
        yield events


def software_of(path: Path) -> dict[str, str]:
    """What a recording was measured with."""
    found: dict[str, str] = json.loads(_text(path).partition("\n")[0])
    return found


def _text(path: Path) -> str:
    return lzma.decompress(path.read_bytes()).decode()


def _path(name: str) -> Path:
    return FOLDER / f"{name}.jsonl.xz"


def _software() -> Mapping[str, str]:
    """Versions without what they were built for."""
    return {each: importlib.metadata.version(each).partition("+")[0] for each in _PACKAGES}


def _digests(worlds: Worlds) -> dict[tuple[str, int], str]:
    return {
        (job.metadata.name, rank): _digest(job, world)
        for jobs, world in worlds for job in jobs for rank in range(world)
    }  # fmt: skip


def _digest(job: Job, world: int) -> str:
    """Of all that makes the step what it is: the job, its world, and the models of tests that it may name.

    What a job leaves at its default does not count: a key that is added to the spec asks for no new measurement.
    """
    named = job.model.factory.partition(":")[0]
    models = Path(_HERE, f"{named}.py").read_text(encoding="utf-8") if named else ""
    said = _describe(job).replace(_HERE, "")
    return hashlib.sha256(f"{said} {world} {models}".encode()).hexdigest()[:16]


def _describe(value: Any) -> str:
    """The fields of a dataclass that are not as a bare one has them, all the way down."""
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    said = [(each.name, getattr(value, each.name)) for each in fields(value) if not _is_default(value, each)]
    return f"{type(value).__name__}({', '.join(f'{name}={_describe(given)}' for name, given in said)})"


def _is_default(value: Any, each: Field[Any]) -> bool:
    given = getattr(value, each.name)
    if each.name == "parameter_dtype" and given in (AS_BUILT, "float32"):
        return True  # filled in by where the model comes from
    return given == (each.default_factory() if each.default_factory is not MISSING else each.default)
