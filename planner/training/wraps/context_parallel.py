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
from planner.job import schema
from planner.training.inputs import MicroBatch

if TYPE_CHECKING:
    from planner.training.device_mesh import World

Split = Callable[[MicroBatch], AbstractContextManager[None]]
"""Inside, a micro-batch is this rank's part of the sequence."""


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
