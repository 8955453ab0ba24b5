"""Ray workers that each run one measuring process at a time, on a GPU or a CPU of their own.

A placement group and torch's own rendezvous, not Ray Train's TorchTrainer: that joins the process group in the worker
itself, where a context on the same GPU would stand in the device bytes, and an out-of-memory would end the worker.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from planner.errors import MeasureError
from planner.runtime.limits import Limits
from planner.runtime.walls import Walls
from planner.validation.placement import Place

_LOOK_SECONDS = 0.25
_START_SECONDS = 120.0
"""For a worker process to start once its place is there: a fresh runtime environment may have to come first."""
_PEERS_SECONDS = 10.0
"""How long peers may take after one of them has ended without success: they wait for it in a collective, in vain."""
_OVERHEAD_SECONDS = 60.0
"""Beyond the child's own limit, after which a worker that does not answer is given up."""

_GONE = {
    "problem": "the Ray worker that measured was lost (its process or its node ended)",
    "remedy": "ask again",
}


class StoppedError(Exception):
    """Whoever asked does not want the answer any more."""


class MeasuringWorker:
    """The actor: it starts the measuring process and waits for it, in its main thread."""

    def ready(self) -> tuple[str, int]:
        """An address at which this node can be reached, and a port that is free on it now."""
        address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        with socket.socket() as probe:
            probe.bind(("", 0))
            return address, int(probe.getsockname()[1])

    def measure(self, request: Mapping[str, Any], limits: Limits, walls: Walls | None) -> dict[str, Any]:
        """As `measuring_process.run`."""
        from planner.validation import measuring_process

        return measuring_process.run(request, limits, walls)

    def process(self) -> int:
        """Its process id."""
        return os.getpid()


@contextmanager
def start_workers(place: Place, *, wait_seconds: float, stop: threading.Event) -> Iterator[list[Any]]:
    """One worker for each bundle of the place, all or none; ended afterwards, with whatever runs on them.

    Raises MeasureError if the place is not free within `wait_seconds`, StoppedError if `stop` is set meanwhile.
    """
    group = placement_group(
        [dict(bundle) for bundle in place.bundles],
        strategy=place.strategy,
        bundle_label_selector=[dict(place.labels)] * len(place.bundles) if place.labels else None,
    )
    workers: list[Any] = []
    try:
        _wait_for(group, len(place.bundles), wait_seconds, stop)
        workers += [_bench(group, index, bundle) for index, bundle in enumerate(place.bundles)]
        yield workers
    finally:
        for worker in workers:
            with suppress(RayError):
                ray.kill(worker)
        with suppress(RayError):
            remove_placement_group(group)


def meeting_of(workers: Sequence[Any]) -> str:
    """Where the peers meet: at the first of them. Raises MeasureError if a worker does not come up."""
    try:
        found = ray.get([worker.ready.remote() for worker in workers], timeout=_START_SECONDS)
    except RayError as lost:
        raise MeasureError(f"a Ray worker did not start: {_first_line(lost)}", remedy="ask again") from lost
    address, port = found[0]
    return f"tcp://{address}:{port}"


def all_answers(
    tasks: Sequence[tuple[Any, Mapping[str, Any]]], limits: Limits, stop: threading.Event, walls: Walls | None = None
) -> dict[int, dict[str, Any]]:
    """What each worker answers to its request, by rank, all at a time.

    A lost worker is an answer too. Where one has a problem or ran out of memory, its peers are not waited for long.
    Raises StoppedError.
    """
    waiting = {worker.measure.remote(request, limits, walls): int(request["rank"]) for worker, request in tasks}
    answers: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + limits.seconds + _OVERHEAD_SECONDS
    while waiting and time.monotonic() < deadline:
        if stop.is_set():
            raise StoppedError
        ended, _ = ray.wait(list(waiting), num_returns=1, timeout=_LOOK_SECONDS)
        for reference in ended:
            rank = waiting.pop(reference)
            answers[rank] = _answer(reference)
            if _ended_early(answers[rank]):
                deadline = min(deadline, time.monotonic() + _PEERS_SECONDS)
    cause = next((rank for rank, answer in answers.items() if _ended_early(answer)), None)
    for rank in waiting.values():
        answers[rank] = {"problem": _left_waiting(cause, limits), "of_a_peer": cause is not None}
    return answers


def _left_waiting(cause: int | None, limits: Limits) -> str:
    if cause is None:
        return f"a worker has not answered {_OVERHEAD_SECONDS:g} s after the limit of {limits.seconds:g} s"
    return f"it waited for rank {cause}, which had ended"


def _ended_early(answer: Mapping[str, Any]) -> bool:
    return "problem" in answer or bool(answer["measurement"].get("out_of_memory"))


def _answer(reference: Any) -> dict[str, Any]:
    try:
        return dict(ray.get(reference))
    except RayError:
        return dict(_GONE)


def _wait_for(group: PlacementGroup, processes: int, wait_seconds: float, stop: threading.Event) -> None:
    ready = group.ready()
    deadline = time.monotonic() + wait_seconds
    while not ray.wait([ready], timeout=_LOOK_SECONDS)[0]:
        if stop.is_set():
            raise StoppedError
        if time.monotonic() > deadline:
            what = "GPU" if "GPU" in group.bundle_specs[0] else "CPU"
            raise MeasureError(
                f"the cluster has what is wanted ({processes} x {what}), but for {wait_seconds:g} s it was busy",
                remedy="ask again when others have ended",
            )


def _bench(group: PlacementGroup, index: int, bundle: Mapping[str, float]) -> Any:
    special = {name: count for name, count in bundle.items() if name not in ("CPU", "GPU")}
    where = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
    return (
        ray.remote(MeasuringWorker)
        .options(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            resources=special or None,
            scheduling_strategy=where,
            max_restarts=0,
        )
        .remote()
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
