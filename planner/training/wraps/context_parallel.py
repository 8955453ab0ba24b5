"""Context parallelism: torch's own `context_parallel`, which splits the sequence and passes keys and values around.

Every rank holds two chunks of the sequence, one from its head and one from its tail, so that causal attention is work
for all alike (torch 2.13, distributed/tensor/experimental/_context_parallel). Scaled dot-product attention becomes a
ring: a rank attends to its own keys and values, then to those of each of the others, and merges the results in
float32. Input ids and labels are split, as torchtitan splits them, and not put together again. Positions count from 0
on every rank: the tokens' rotations have other values then, and take the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from planner.errors import SpecError
from planner.hardware.architectures import find_architecture
from planner.job import schema
from planner.training.inputs import MicroBatch
from planner.upstream import torch_releases

if TYPE_CHECKING:
    from planner.training.device_mesh import World

_ALWAYS_CUDNN = (2, 9)
"""Release of torch whose builds all have a cuDNN that attention prefers."""

Split = Callable[[MicroBatch], AbstractContextManager[None]]
"""Inside, a micro-batch is this rank's part of the sequence."""


def require_release(job: schema.Job, arch: str) -> None:
    """Raises TorchVersionError for a torch whose attention over cuDNN planner does not know, where it is preferred."""
    if job.parallel.cp.degree > 1 and _prefers_cudnn_attention(arch, job.software):
        torch_releases.require("context parallelism over cuDNN's attention", place="parallel.cp.degree")


def _prefers_cudnn_attention(arch: str, software: schema.Software) -> bool:
    """Data-centre Hopper and Blackwell do: under torch 2.9 where cuDNN is 9.9 or newer, as in all of its builds (10.3,
    of the B300, not yet); since 2.10 where it is newer than 9.15.0, in builds for CUDA 13. Before nothing does.

    Source: torch 2.9 and 2.13 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (check_prefer_cudnn_attention; the
    variable that it reads, TORCH_CUDNN_SDPA_PREFERRED or _DEPRIORITIZED, names the rule in a build).
    """
    capability = find_architecture(arch).capability
    if not arch.startswith("sm_") or capability[0] not in (9, 10):
        return False
    release = tuple(map(int, software.torch.split(".")[:2]))
    if release == _ALWAYS_CUDNN:
        return capability[1] == 0
    return release > _ALWAYS_CUDNN and int(software.cuda.partition(".")[0] or 0) >= 13


def splitting(spec: schema.Cp, world: World) -> Split:
    """What forward and backward of each micro-batch run in; nothing where there is one rank."""
    if spec.degree == 1:
        return whole
    return partial(_split, mesh=world.device_mesh["cp"], rotate=spec.rotate)


def whole(_batch: MicroBatch) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _split(batch: MicroBatch, *, mesh: DeviceMesh, rotate: str) -> Iterator[None]:
    # Only jobs with context parallelism pay for the import.
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    set_rotate_method(rotate)
    buffers = [tensor for tensor in (*batch.arguments.values(), *batch.labels.values()) if _has_tokens(tensor)]
    if not buffers:
        raise SpecError(
            "the model takes no sequence of tokens that could be split",
            allowed="models of tokens: (batch, tokens)",
            place="parallel.cp.degree",
        )
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1] * len(buffers), no_restore_buffers=set(buffers)):
        yield


def _has_tokens(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and not tensor.is_floating_point()
