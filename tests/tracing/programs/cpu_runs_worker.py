"""Runs in a process of its own: `cpu_runs_worker.py paper`, or `cpu_runs_worker.py worlds JOBS.pickle ANSWERS.pickle`.

JOBS are lists of jobs and the size of the world of each, whose ranks are forked from one process: what all need is
imported once. `paper` reads lines of JSON, each with JOBS (pairs of a job and its rank) and ANSWERS; it forks a child
for each, and writes ANSWERS with the code that it ended with.

The paper GPU must be there before torch, and must not be there at all where something is measured.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import os
import pickle
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

ARCH = "sm_90"
MOST_SECONDS = 600
"""For a process: minutes where many others run beside it."""
_NEEDED = (
    "settled_gloo",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "planner.truth.measuring.job_rank",
    "planner.training.pipelined_loop",
)


def on_paper(job: Any, rank: int) -> dict[str, Any]:
    from planner.events import Mark, Phase
    from planner.tracing.job_program import trace

    with _nothing_refused():
        traced = trace(_on_a_node(job), rank, target=ARCH)
    return {"events": (Mark(Phase.LOAD), *traced.written_out()), "ddp": dict(traced.buckets), "host": traced.host}


def _on_a_node(job: Any) -> Any:
    """With a GPU for each of its ranks."""
    from planner.job.layout import Mesh

    cluster = dataclasses.replace(job.cluster, gpus_per_node=Mesh.of(job.parallel).world_size)
    return dataclasses.replace(job, cluster=cluster)


def _nothing_refused() -> Any:
    """What is refused in a spec, as what leaves the last rank less, is compared as well."""
    return mock.patch("planner.job.consistency.check")


def for_real(job: Any, rank: int) -> dict[str, Any]:
    """The rank's program as `planner measure` runs it, but all runs in this process: a world's ranks are forked from
    one, and a start of each would take minutes."""
    import torch

    from planner.training import absent_peers
    from planner.truth.measuring.measure import make_setting, measure_until_runs_agree

    meets = torch.distributed.is_initialized()
    with _nothing_refused(), ExitStack() as stack:
        setting = make_setting(_on_a_node(job), "cpu", rank, meeting="here" if meets else "")
        if setting.peers == "absent":
            stack.enter_context(absent_peers.join(rank, setting.world_size))
        stack.enter_context(absent_peers.take_every_step())
        variables = {"RANK": str(rank), "WORLD_SIZE": str(setting.world_size), "LOCAL_RANK": "0"}
        stack.enter_context(mock.patch.dict(os.environ, variables))
        runs: list[_Run] = []

        def once() -> dict[int, Any]:
            runs.append(_run_once(job, setting))
            mine = [runs[-1].measurement]
            if not meets:
                return {rank: mine[0]}
            every: list[Any] = [None] * setting.world_size
            torch.distributed.all_gather_object(every, mine[0])  # ranks that are there have to run equally often
            return dict(enumerate(every))

        best = measure_until_runs_agree(once)[rank]
    run = next(run for run in runs if run.measurement.phases == best.phases)
    return {"events": run.events, "measurement": best, "ddp": run.ddp}


@dataclasses.dataclass(frozen=True)
class _Run:
    measurement: Any
    events: tuple[Any, ...]
    ddp: dict[str, Any]


def _run_once(job: Any, setting: Any) -> _Run:
    import torch

    from planner.job.loading import bundle
    from planner.truth.measuring.host_recorder import HostRecorder
    from planner.truth.measuring.job_rank import recorded
    from planner.truth.measuring.measurement_lines import Measurement, Truth, most_by_category, phases_of
    from planner.truth.measuring.software import device_facts, software

    recorder = HostRecorder()
    gc.collect()
    arguments = ["planner.programs.train", json.dumps(bundle(job)), "--device", "cpu"]
    with mock.patch.object(sys, "argv", arguments), recorder.profile():
        with recorded(recorder, "cpu"):
            left = runpy.run_module(arguments[0], run_name="__main__")
        gc.collect()
    ddp = _account_of(left["trained"].model)
    del left
    found = recorder.build_recording()
    measurement = Measurement(
        case=job.metadata.name, job=bundle(job), device=device_facts(torch.device("cpu")), software=software(), date="",
        phases=phases_of(found.events), rank=setting.rank, world_size=setting.world_size, peers=setting.peers,
        categories=most_by_category(found.events),
        truth=Truth(runs=1, agreeing=1, net_bytes=found.net_bytes, live_bytes=found.live_bytes),
    )  # fmt: skip
    return _Run(measurement, found.events, ddp)


def _account_of(model: Any) -> dict[str, Any]:
    """What DistributedDataParallel says of its buckets: their sizes, rebuilt or not, the hook's name."""
    from torch.nn.parallel import DistributedDataParallel

    if not isinstance(model, DistributedDataParallel):
        return {}
    logged = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return {key: value for key, value in logged.items() if isinstance(value, str | int | float | bool)}


def main(kind: str, *words: str) -> None:
    if kind == "paper":
        import planner.paper  # noqa: F401
    import torch

    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # oneDNN lays tensors out as the processor likes it
    if kind == "worlds":
        jobs, answers = words
        in_worlds(pickle.loads(Path(jobs).read_bytes()), answers)
    else:
        serve_paper()


def serve_paper() -> None:
    """Until there are no more lines."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    for name in ("planner.tracing.job_program", "transformers"):
        importlib.import_module(name)
    for line in sys.stdin:
        jobs, answers = json.loads(line)
        child = os.fork() or _as_child(jobs, answers)
        replies.write(f"{answers} {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        replies.flush()


def _as_child(jobs: str, answers: str) -> NoReturn:
    from planner import paper

    signal.alarm(MOST_SECONDS)
    try:
        with paper.gpu(ARCH):  # before anything counts the devices
            pass
        run_all(on_paper, pickle.loads(Path(jobs).read_bytes()), answers)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def run_all(run: Callable[..., dict[str, Any]], asked: list[Any], answers: str) -> None:
    found: dict[tuple[str, int], Any] = {}
    for job, rank in asked:
        gc.collect()
        gc.freeze()  # what is imported is not looked through in each of a step's collections: twice as fast
        try:
            found[job.metadata.name, rank] = run(job, rank)
        except Exception:
            found[job.metadata.name, rank] = {"error": traceback.format_exc()}
    Path(answers).write_bytes(pickle.dumps(found))


def in_worlds(worlds: list[tuple[list[Any], int]], answers: str) -> None:
    """One world after the other; the answers of a rank are in `ANSWERS.WORLD.RANK`."""
    import_what_is_needed(job for jobs, _ in worlds for job in jobs)
    for jobs, world in worlds:
        meeting = f"{answers}.{world}.meeting" if world > 1 else ""
        place = f"{answers}.{world}"
        ranks = [os.fork() or _as_rank(rank, jobs, f"{place}.{rank}", meeting, world) for rank in range(world)]
        ended = [os.waitpid(rank, 0)[1] for rank in ranks]
        if any(ended):
            sys.exit(f"ranks of a world of {world} ended with {ended}")


def _as_rank(rank: int, jobs: list[Any], answers: str, meeting: str, world: int) -> NoReturn:
    try:
        if meeting:
            import settled_gloo

            settled_gloo.meet(meeting, rank, world)
        run_all(for_real, [(job, rank) for job in jobs], answers)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def import_what_is_needed(jobs: Iterable[Any]) -> None:
    """Without starting a thread, which a fork would lose."""
    for name in (*_NEEDED, *(["transformers"] if any(job.model.hf_config for job in jobs) else [])):
        importlib.import_module(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
