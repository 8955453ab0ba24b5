"""Three lines in training code that report what memory its rank takes: a plain loop, transformers' Trainer, Lightning.

    with report_memory(file="memory.jsonl") as memory:  # a plain loop; memory.step() ends each iteration
    Trainer(..., callbacks=[trainer_callback()])
    lightning.Trainer(..., callbacks=[lightning_callback()])

Each keeps the most memory that its rank took, and sends it now and then. It only reads: no counter is
reset, nothing is allocated, no kernel is waited for. Reports leave in a thread of their own, and what goes wrong here
is one line in the log, never an exception in the training.
"""

from __future__ import annotations

import atexit
import datetime
import functools
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, cast

import torch

from planner.truth.measuring.job_reports import ReportSender, job_of, plan_of, to_file, to_service
from planner.truth.measuring.measurement_lines import FIGURES, Levels
from planner.truth.measuring.nvml import Driver, describe_gpu
from planner.truth.measuring.software import allocator_conf, software

SCHEMA = "planner.job/1"
_FIRST_ITERATIONS = 2
"""Reported each: optimizer state is born in the first, the second is the usual peak, later ones are alike."""
Reader = Callable[[], Mapping[str, int]]
_P = ParamSpec("_P")

_log = logging.getLogger("planner.truth.measuring")
_RAN_OUT = ("out of memory", "ALLOC_FAILED", "can't allocate memory", "not enough memory")
"""In what a RuntimeError says: the driver and NCCL, CUDA's libraries, torch's CPU allocator."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is reported and where to; what is empty is taken from the environment."""

    file: str | Path = ""
    """JSON lines, one per report; `{rank}` in the name is the rank. Else PLANNER_REPORT_FILE, else none."""
    server: str = ""
    """The planner service; else PLANNER_SERVER, else none. Its bearer token is PLANNER_TOKEN."""
    system: str = ""
    id: str = ""
    """The job; else PLANNER_JOB_SYSTEM and PLANNER_JOB_ID, else what Ray, Slurm, Kubernetes or torchrun say."""
    plan: str = ""
    """The plan's id; else PLANNER_PLAN_ID, else what the hook of `ray job submit` left with the job."""
    team: str = ""
    """Else PLANNER_TEAM, else Slurm's account."""
    queue: str = ""
    """Else PLANNER_QUEUE, else Slurm's partition."""
    every: int = 500
    """Iterations from report to report, after those of the first two; 0: no more until the end."""
    wait_seconds: float = 8.0
    """So long the end of the training waits for the last report."""
    read: Reader | None = None
    """Instead of `torch.cuda.memory_stats`; empty where there is nothing to read. What it says under `device_bytes` is
    what the device holds for this process, instead of the driver's word."""

    def resolve(self, name: str, *variables: str) -> str:
        """The setting, or the first of these variables that is set."""
        return str(getattr(self, name)) or next((os.environ[name] for name in variables if os.environ.get(name)), "")


def _quiet(
    hook: Callable[Concatenate[MemoryReport, _P], None],
) -> Callable[Concatenate[MemoryReport, _P], None]:
    """Whatever fails inside is logged once and never reaches the training."""

    @functools.wraps(hook)
    def wrapper(self: MemoryReport, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            hook(self, *args, **kwargs)
        except Exception as error:
            self._tell_once(f"memory is not reported, training goes on: {type(error).__name__}: {error}")

    return cast("Callable[Concatenate[MemoryReport, _P], None]", wrapper)


class MemoryReport:
    """One rank's report, from `begin` to `end`. No method raises."""

    def __init__(self, settings: Settings) -> None:
        self.iteration = 0
        """Optimizer steps that have ended."""
        self._settings = settings
        self._highest: Levels | None = None
        """The highest ever read, each figure at its own moment; None where no CUDA memory was seen."""
        self._last = Levels()
        self._most_device_bytes = self._resets = 0
        self._outbox: ReportSender | None = None
        self._job: tuple[str, str] | None = None
        self._facts: dict[str, Any] = {}
        self._started, self._ended, self._out_of_memory = "", "", ""
        self._counted_by = ""
        self._driver = Driver(torch, is_alone=True)
        self._stats: Mapping[str, int] = {}
        self._process = os.getpid()
        self._warnings: set[str] = set()

    @_quiet
    def begin(self) -> None:
        """The model may be on the device already, or not yet."""
        if self._started and not self._ended:
            return
        self._started, self._ended, self._process = _now(), "", os.getpid()
        self.iteration, self._highest, self._facts, self._out_of_memory = 0, None, {}, ""
        self._last, self._most_device_bytes, self._resets = Levels(), 0, 0
        atexit.register(self._at_exit)
        settings = self._settings
        self._job = job_of(os.environ)
        if settings.id:
            self._job = (settings.resolve("system", "PLANNER_JOB_SYSTEM") or "other", settings.id)
        file, server = settings.resolve("file", "PLANNER_REPORT_FILE"), settings.resolve("server", "PLANNER_SERVER")
        destinations = [to_file(Path(file))] if file else []
        if server and self._job:
            destinations.append(to_service(server, os.environ.get("PLANNER_TOKEN", "")))
        elif server:
            self._tell_once("nothing says which job this is, so the service is not told: set PLANNER_JOB_ID")
        if not destinations:
            self._tell_once("memory is reported to nobody: give a file or a server")
        self._outbox = ReportSender(tuple(destinations))
        self._look(with_device=True)

    @_quiet
    def step(self) -> None:
        """An optimizer step has ended."""
        self.iteration += 1
        every = self._settings.every
        due = self.iteration <= _FIRST_ITERATIONS or (every > 0 and self.iteration % every == 0)
        self._look(with_device=due)
        if due:
            self._report()

    @_quiet
    def end(self, error: BaseException | None = None) -> None:
        """The training is over, by itself or by `error`; waits until the last report is delivered, not for long."""
        if not self._started or self._ended or os.getpid() != self._process:
            return
        self._ended = _now()
        atexit.unregister(self._at_exit)
        self._out_of_memory = _out_of_memory_words(error)
        with suppress(Exception):  # what was known before is reported even if the device is gone
            self._look(with_device=True)
        self._report()
        if self._outbox is not None:
            self._outbox.finish(self._settings.wait_seconds)

    def __enter__(self) -> MemoryReport:
        self.begin()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end(error)

    def document(self) -> dict[str, Any]:
        """What is known now, as it is reported; empty where no CUDA memory was seen."""
        highest, settings = self._highest, self._settings
        if highest is None:
            return {}
        system, job = self._job or ("", "")
        rank = {
            **self._facts,
            "steps": self.iteration,
            "peak": asdict(highest),
            "device_bytes": self._most_device_bytes,
            "device_bytes_by": self._counted_by,
            "resets_seen": self._resets,
            "cache_releases": self._stats.get("num_alloc_retries", 0),
            "out_of_memory": self._out_of_memory,
        }
        return {
            "schema": SCHEMA,
            "system": system,
            "id": job,
            "plan_id": settings.plan or plan_of(os.environ),
            "team": settings.resolve("team", "PLANNER_TEAM", "SLURM_JOB_ACCOUNT"),
            "queue": settings.resolve("queue", "PLANNER_QUEUE", "SLURM_JOB_PARTITION"),
            "hosts": [self._facts["host"]],
            "gpu_uuids": [self._facts["gpu"]["uuid"]] if self._facts["gpu"]["uuid"] else [],
            "started_at": self._started,
            "ended_at": self._ended or None,
            "ranks": [rank],
        }

    def _at_exit(self) -> None:
        """The process ends and nobody said so: the Trainer, for one, tells its callbacks of no exception."""
        self.end(getattr(sys, "last_value", None))

    def _look(self, *, with_device: bool) -> None:
        # Never makes a CUDA context: a process that has none has no CUDA memory.
        read = self._settings.read or (torch.cuda.memory_stats if torch.cuda.is_initialized() else dict)
        stats: Mapping[str, int] = read()
        if not stats:
            if self.iteration:
                self._tell_once("this process uses no CUDA memory: nothing is reported")
            return
        self._stats, peak = stats, Levels.of(stats, "peak")
        if self._highest is None:
            self._facts = _facts()
        # A counter that fell was set back by the training.
        self._resets += any(getattr(peak, name) < getattr(self._last, name) for name in FIGURES)
        self._last, self._highest = peak, peak.highest(self._highest or peak)
        if with_device:
            self._most_device_bytes = max(self._most_device_bytes, self._device_bytes())

    def _device_bytes(self) -> int:
        """As the driver counts this process; where it does not, what is in use on the whole device."""
        if "device_bytes" in self._stats:
            self._counted_by = "process"
            return self._stats["device_bytes"]
        if not torch.cuda.is_initialized():
            return 0
        held = self._driver.read_bytes(torch.cuda.current_device())
        self._counted_by = self._driver.counted_by
        return held

    def _report(self) -> None:
        document = self.document()
        if document and self._outbox is not None:
            self._outbox.offer(document)

    def _tell_once(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.add(message)
            _log.warning("planner: %s", message)


def _out_of_memory_words(error: BaseException | None) -> str:
    """What an error says of memory that ran out, of the GPU or of the host; empty for any other error.

    torch's own message is one line, that of `backend:cudaMallocAsync` eight; what the driver, NCCL and CUDA's libraries
    say, and torch's CPU allocator, comes as a RuntimeError.
    """
    if error is None:
        return ""
    lines = str(error).splitlines() or [""]
    if isinstance(error, torch.OutOfMemoryError):
        return "\n".join(lines[:8] if lines[0].startswith("Allocation on device") else lines[:1])
    if isinstance(error, MemoryError):
        return f"MemoryError: {lines[0]}"
    if not isinstance(error, RuntimeError):
        return ""
    return next((line for line in lines if any(words in line for words in _RAN_OUT)), "")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _facts() -> dict[str, Any]:
    joined = torch.distributed.is_available() and torch.distributed.is_initialized()
    return {
        "rank": torch.distributed.get_rank() if joined else int(os.environ.get("RANK", "0")),
        "world_size": torch.distributed.get_world_size() if joined else int(os.environ.get("WORLD_SIZE", "1")),
        "host": socket.gethostname(),
        "gpu": _gpu(),
        "software": software(),
        "allocator_conf": allocator_conf(),
    }


def _gpu() -> dict[str, Any]:
    if not torch.cuda.is_initialized():
        return {"name": "", "uuid": "", "total_bytes": 0}
    facts = describe_gpu(torch, torch.cuda.current_device())
    return {name: facts[name] for name in ("name", "uuid", "total_bytes")}


def report_memory(**settings: Any) -> MemoryReport:
    """For a plain loop: a context manager around it; the arguments are those of :class:`Settings`.

    Raises TypeError for an argument that is none of them.
    """
    return MemoryReport(Settings(**settings))


def trainer_callback(**settings: Any) -> Any:
    """For transformers' Trainer: a TrainerCallback. Raises TypeError as :func:`report_memory`."""
    return _make_callback("trainer", Settings(**settings))


def lightning_callback(**settings: Any) -> Any:
    """For Lightning's Trainer: a Callback of `lightning` or `pytorch_lightning`. Raises as :func:`report_memory`."""
    return _make_callback("lightning", Settings(**settings))


class _Hooks:
    """What both frameworks' callbacks have: the report, and a way through pickle."""

    framework = ""

    def __init__(self, settings: Settings) -> None:
        self.memory = MemoryReport(settings)
        self._settings = settings

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, Settings]]:
        return _make_callback, (self.framework, self._settings)


class _TrainerHooks(_Hooks):
    framework = "trainer"

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.memory.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.memory.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.memory.end()


class _LightningHooks(_Hooks):
    """An iteration ends when `trainer.global_step` has moved: with accumulated gradients not at each batch."""

    framework = "lightning"
    _steps = 0

    def on_fit_start(self, *_: Any) -> None:
        self.memory.begin()

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self._steps = getattr(trainer, "global_step", 0)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if getattr(trainer, "global_step", self._steps + 1) == self._steps:
            return
        self.memory.step()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException, *_: Any) -> None:  # noqa: ARG002
        self.memory.end(exception)

    def on_fit_end(self, *_: Any) -> None:
        self.memory.end()


_BASES = {
    "trainer": (_TrainerHooks, ("transformers.trainer_callback:TrainerCallback",)),
    "lightning": (_LightningHooks, ("lightning.pytorch:Callback", "pytorch_lightning:Callback")),
}


@functools.cache
def _class_for(framework: str) -> type[_Hooks]:
    """The hooks on top of the framework's own base class, where that can be imported: it may look at the type."""
    hooks, paths = _BASES[framework]
    bases = []
    for path in paths:
        module, _, name = path.partition(":")
        with suppress(Exception):  # not installed, or broken: the hooks are all that is needed
            bases.append(getattr(import_module(module), name))
    return type("MemoryCallback", (hooks, *bases), {})


def _make_callback(framework: str, settings: Settings) -> Any:
    return _class_for(framework)(settings)
