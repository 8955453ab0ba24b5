"""What torch's MemTracker says of a job of benchmarks/peers.py: "Total" at the peak of two iterations.

It runs under FakeTensorMode, or its FSDPMemTracker for jobs under fully_shard, over torch's fake process group. Tensors
are on the CPU, since without a GPU FakeTensorMode has no backward on cuda; planner's training rooms make model, inputs
and loss. It counts storages, rounded up to 512 bytes, and knows no allocator.

Two of its traits are kept away from it. Under FakeTensorMode it also counts the unsharded shapes that DTensor makes to
find the shape of a result (torch 2.13: 93 instead of 23 GiB for Llama-2-7B), so its optimizers of DTensors work on one
parameter at a time, and nothing is clipped; neither decides the peak of these jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import peer_jobs
import peer_models
import torch
from peer_jobs import PeerJob
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.utils import clip_grad_norm_

from planner.job.loading import load_job
from planner.job.schema import Job
from planner.training import blocks, inputs, optimizers
from planner.training.loop import Precision
from planner.training.loss_functions import Objective
from planner.training.wraps import fsdp2

CPU = torch.device("cpu")
ITERATIONS = 2
"""The second one is the first with optimizer states from its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A model with its optimizer, and the loss of one micro-batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]
    clipping: float = 0.0
    keeps_gradients: bool = False


def estimate(job: PeerJob) -> int:
    if job.program:
        with FakeTensorMode():
            return _peak(_of_program(job), MemTracker)
    spec = load_job(job.spec_path)
    with _mesh(spec.parallel.dp_shard.degree) as mesh, FakeTensorMode(allow_non_fake_inputs=True):
        training = _of_spec(spec, mesh)
        return _peak(
            training, MemTracker if mesh is None else lambda: FSDPMemTracker(training.model, training.optimizer)
        )


def _peak(training: Training, made: Callable[[], MemTracker]) -> int:
    tracker = made()
    tracker.track_external(training.model, training.optimizer)
    with tracker:
        for _ in range(ITERATIONS):
            tracker.reset_mod_stats()
            training.loss().backward()
            if training.clipping:
                clip_grad_norm_(training.model.parameters(), training.clipping)
            training.optimizer.step()
            training.optimizer.zero_grad(set_to_none=not training.keeps_gradients)
    return int(tracker.get_tracker_snapshot("peak")[CPU]["Total"])


@contextmanager
def _mesh(ranks: int) -> Iterator[DeviceMesh | None]:
    """A mesh of ranks that are not there; none for one rank. Its ranks are numbers, hence outside of FakeTensorMode."""
    if ranks == 1:
        yield None
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        torch.distributed.destroy_process_group()


def _of_spec(spec: Job, mesh: DeviceMesh | None) -> Training:
    train = spec.train
    model = peer_models.of_spec(spec.model)
    feed = inputs.find_feed(model, spec)
    blocks.apply_recompute(model, train.recompute, spec.model.blocks)
    optimizer, clipping = train.optimizer, train.gradient_clipping
    if mesh is not None:
        found = blocks.find_blocks(model, spec.model.blocks)
        fsdp2.shard(model, found, spec.parallel.dp_shard, mesh, mixed=train.precision == "fsdp_mixed")
        optimizer, clipping = replace(optimizer, arguments={**optimizer.arguments, "foreach": False}), 0.0
    objective, precision = Objective(train.loss, feed, CPU), Precision(train.precision, CPU)

    def loss() -> Tensor:
        tensors = inputs.make(feed, train.micro_batch_size, own_loss=objective.own)
        batch = inputs.move(tensors, feed, CPU, own_loss=objective.own)
        with precision.autocast():
            return objective(model, batch)

    return Training(
        model=model, optimizer=optimizers.build(optimizer, model.parameters()), loss=loss, clipping=clipping,
        keeps_gradients=not train.zero_grad_set_to_none,
    )  # fmt: skip


def _of_program(job: PeerJob) -> Training:
    """The loop of tests/tracing/programs/recorded_language_models.py with its tensors on the CPU."""
    model = peer_models.module_of(job)
    from recorded_language_models import VOCABULARY, MediumAdam, medium_loss

    tokens = torch.randint(0, VOCABULARY, (4, peer_jobs.CONTEXT))
    return Training(
        model=model, optimizer=MediumAdam(model.parameters()), loss=lambda: medium_loss(model(tokens), tokens)
    )
