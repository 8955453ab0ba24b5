"""DeepSpeed's ZeRO stages 1 and 2, modelled: real tensors, allocated as DeepSpeed's optimizer allocates them.

No code of DeepSpeed runs. What is allocated, when and how large, and when it is let go, is read from DeepSpeed 0.19.8:
deepspeed/runtime/zero/stage_1_and_2.py (flat buffers, ipg buckets, partitions, the step), runtime/engine.py (casts,
micro-batches), runtime/utils.py (overflow, all-gather), zero/utils.py (norms in double precision). torch's own code
runs for the model, the backward, the collectives and the optimizer over the partition.

Not modelled: DeepSpeed's timers and logs, a loss scale (scalars), several parameter groups: there is one, and the
trained parameters lie in it in the model's order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.optim.optimizer import Optimizer

from planner.events import Category
from planner.spec import deepspeed, job
from planner.training.observer import Observer, Silent
from planner.training.wraps.deepspeed_partitions import Partitions, Piece, slices


def resolved(spec: job.Job) -> job.Job:
    """The job as DeepSpeed's engine makes it: the model cast, the config's optimizer in place of the job's."""
    if spec.parallel.deepspeed is None:
        return spec
    zero = deepspeed.zero_of(spec)
    model = replace(spec.model, parameter_dtype=zero.dtype)
    return replace(spec, model=model, train=replace(spec.train, optimizer=zero.optimizer))


def on_host(work: Callable[[], None]) -> None:
    """Work on host tensors alone; it is left out where no device is watched."""
    work()


def host_tensor(elements: int, dtype: torch.dtype, *, pinned: bool) -> Tensor:
    """Zeros on the host."""
    return torch.zeros(elements, dtype=dtype, pin_memory=pinned and torch.cuda.is_available())


_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""The new name of torch 2.13, which warns of the old one."""


@dataclass
class _Bucket:
    """The ipg bucket: gradients that wait to be reduced together."""

    buffers: list[Tensor] = field(default_factory=list)
    at: int = 0
    filled: int = 0
    inside: list[int] = field(default_factory=list)
    too_large: bool = False
    """A gradient larger than the buffer: it is reduced where it lies, alone."""


class DividedByDeepSpeed(Optimizer):
    """The optimizer of one rank over its partition; the loop tells it of micro-batches."""

    def __init__(
        self,
        kind: Any,
        trained: list[nn.Parameter],
        arguments: dict[str, Any],
        *,
        spec: job.Job,
        group: dist.ProcessGroup | None,
        rank: int,
    ) -> None:
        """Flattens the parameters, which become views, and makes the fp32 partition of this rank."""
        super().__init__(trained, {})
        self._zero = deepspeed.zero_of(spec)
        self._clipping = spec.train.gradient_clipping
        self._group, self._rank = group, rank
        self._ranks = spec.parallel.dp_replicate.degree
        self._trained = trained
        shapes = [each.shape for each in trained]
        self._device, self._dtype = trained[0].device, trained[0].dtype
        self.partitions = Partitions(tuple(each.numel() for each in trained), self._ranks)
        self._own = {piece.parameter: piece for piece in self.partitions.of_rank(rank)}
        self.last_micro_batch = True
        self._names: Mapping[int, str] = {}
        self._observer: Observer = Silent()
        self._bucket = _Bucket()
        self._micro_step = -1
        self._in_partition: Tensor | None = None
        self._in_partition_filled = 0
        self._in_fp32: Tensor | None = None
        self._accumulated: list[Tensor] | None = None
        self._averaged: list[Tensor] = []
        self._norms: dict[int, Tensor] = {}
        self._side = torch.cuda.Stream() if self._zero.overlap_comm and self._device.type == "cuda" else None
        with torch.no_grad():
            self._flat = self._flattened(fits=_fits_twice(spec, self.partitions.total * self._dtype.itemsize))
            for parameter, offset, shape in zip(trained, self.partitions.offsets, shapes, strict=True):
                parameter.data = self._flat.narrow(0, offset, shape.numel()).view(shape)
            self._share = self._flat.narrow(0, rank * self.partitions.size, self.partitions.size)
            self._master = self._fp32_partition()
        self._begin_state()
        self.optim: Optimizer = kind([self._master], **arguments)
        self._to_host: dict[int, Tensor] = {}
        self._hooks = [
            each.register_post_accumulate_grad_hook(partial(self._ready, number)) for number, each in enumerate(trained)
        ]

    def watched_by(self, observer: Observer, names: Mapping[int, str]) -> None:
        """`names` are those of the parameters by their id."""
        self._observer, self._names = observer, names
        observer.assign(self._flat, Category.PARAMETER, "deepspeed.flat")
        if not self._zero.offload:
            observer.assign(self._master, Category.OPTIMIZER_STATE, "deepspeed.fp32_partition")
        else:
            observer.assign(self._offload_buffer, Category.BUCKET, "deepspeed.offload")

    # -- load

    def _flattened(self, *, fits: bool) -> Tensor:
        """On the device if it has the memory for both, as DeepSpeed asks first; else by way of the host."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if not fits:
            return self._flattened_on_host()
        given: list[Tensor] = list(self._trained)
        padding = self.partitions.padding
        if padding:
            given.append(torch.zeros(padding, dtype=self._dtype, device=self._device))
        flat: Tensor = _flatten_dense_tensors(given)
        return flat

    def _flattened_on_host(self) -> Tensor:
        flat = host_tensor(self.partitions.total, self._dtype, pinned=False)
        for parameter, offset in zip(self._trained, self.partitions.offsets, strict=True):
            into, data = flat.narrow(0, offset, parameter.numel()), parameter.data.view(-1)
            on_host(partial(_copy, into, data))
            del data
            parameter.data = torch.empty(1).to(self._device)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return flat.to(self._device)

    def _fp32_partition(self) -> Tensor:
        if not self._zero.offload:
            return self._share.detach().clone().to(torch.float32).requires_grad_()
        elements, pinned = self.partitions.size, self._zero.pinned
        copied = self._share.detach().clone()
        master = host_tensor(elements, torch.float32, pinned=pinned)
        on_host(lambda: _copy(master, copied))
        self._low_on_host = host_tensor(elements, self._dtype, pinned=pinned)
        return master.requires_grad_()

    def _begin_state(self) -> None:
        if self._zero.offload:
            self._master.grad = host_tensor(self.partitions.size, torch.float32, pinned=self._zero.pinned)
            self._offload_buffer = torch.zeros(max(self.partitions.sizes), dtype=self._dtype, device=self._device)
            return
        # DeepSpeed makes a gradient for the partition here and drops it at once.
        self._master.grad = torch.zeros(self.partitions.size, dtype=torch.float32, device=self._device)
        self._master.grad = None

    # -- backward

    def _ready(self, number: int, parameter: Tensor) -> None:
        """A gradient has been accumulated."""
        assert parameter.grad is not None
        self._observer.assign(parameter.grad, Category.GRADIENT, self._names.get(id(parameter), ""))
        self._take_buckets()
        if self._zero.stage == 2 or (self._zero.overlap_comm and self.last_micro_batch):
            self._into_bucket(number)

    def _take_buckets(self) -> None:
        if self._bucket.buffers:
            return
        self._micro_step += 1
        elements = self._zero.reduce_bucket_elements
        for _ in range(2 if self._zero.overlap_comm else 1):
            buffer = torch.empty(elements, dtype=self._dtype, device=self._device)
            self._observer.assign(buffer, Category.BUCKET, "deepspeed.ipg")
            self._bucket.buffers.append(buffer)
        self._bucket.at = 0

    def _into_bucket(self, number: int) -> None:
        bucket, grad, elements = self._bucket, self._trained[number].grad, self.partitions.sizes[number]
        if grad is None or not elements:
            return
        if bucket.filled + elements > self._zero.reduce_bucket_elements:
            self._reduce()
            if self._zero.overlap_comm:
                bucket.at = 1 - bucket.at
        if elements > self._zero.reduce_bucket_elements:
            bucket.too_large = True
            if self._zero.offload:
                grad.data = grad.detach().clone(memory_format=torch.contiguous_format)
        else:
            part = bucket.buffers[bucket.at].narrow(0, bucket.filled, elements)
            part.copy_(grad.reshape(-1))
            grad.data = part.view(grad.shape)
        bucket.filled += elements
        bucket.inside.append(number)

    def _reduce(self) -> None:
        """Averages what is in the bucket, and keeps of it what this rank owns."""
        bucket = self._bucket
        if not bucket.inside:
            return
        with torch.no_grad():
            self._average(self._waiting())
            with self._on_side():
                for number in bucket.inside:
                    if number in self._own:
                        self._keep(number)
                    elif self._zero.stage == 2:
                        self._trained[number].grad = None
        bucket.inside, bucket.filled, bucket.too_large = [], 0, False

    def _waiting(self) -> Tensor:
        bucket = self._bucket
        if not bucket.too_large:
            return bucket.buffers[bucket.at].narrow(0, 0, bucket.filled)
        (number,) = bucket.inside
        grad = self._trained[number].grad
        assert grad is not None
        return grad.reshape(-1)

    def _average(self, tensor: Tensor) -> None:
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream())
            torch.cuda.current_stream().wait_stream(self._side)
        with self._on_side():
            if not self._zero.reduce_scatter:
                sent = self._all_reduced(tensor)
                sent.mul_(1.0 / self._ranks)
                if sent is not tensor:
                    tensor.copy_(sent)
                self._add_whole_in_fp32(sent)
                return
            tensor.div_(self._ranks)
            self._average_by_owner(tensor)

    def _add_whole_in_fp32(self, averaged: Tensor) -> None:
        offset = 0
        for number in self._bucket.inside:
            if (piece := self._own.get(number)) is not None:
                self._add_in_fp32(piece, averaged.narrow(0, offset + piece.start, piece.elements))
            offset += self.partitions.sizes[number]

    def _average_by_owner(self, tensor: Tensor) -> None:
        pieces = [piece for number in self._bucket.inside for piece in self.partitions.pieces[number]]
        waiting: list[tuple[Piece, Tensor]] = []
        offset = elements = 0
        for group in slices(pieces, self._rank if self._zero.accumulates_in_fp32 else None):
            size = sum(piece.elements for piece in group)
            waiting.append((group[0], tensor.narrow(0, offset, size)))
            offset, elements = offset + size, elements + size
            if elements > self._zero.reduce_bucket_elements:
                self._send(waiting)
                waiting, elements = [], 0
        if waiting:
            self._send(waiting)

    def _send(self, waiting: list[tuple[Piece, Tensor]]) -> None:
        tensors = [tensor for _, tensor in waiting]
        flat = _flatten_dense_tensors(tensors)  # a single one is not copied
        sent = self._all_reduced(flat)
        if sent is not flat:
            flat.copy_(sent)
        if self._side is not None:
            sent.record_stream(self._side)
        for (piece, tensor), synced in zip(waiting, _unflatten_dense_tensors(sent, tensors), strict=True):
            if piece.rank == self._rank:
                self._add_in_fp32(piece, synced)
                tensor.copy_(synced)
                if self._side is not None:
                    tensor.record_stream(self._side)

    def _add_in_fp32(self, piece: Piece, averaged: Tensor) -> None:
        """To the partition's gradient, which is in fp32 from the start where the config accumulates so."""
        if self._zero.accumulates_in_fp32:
            into = self._fp32_gradient().narrow(0, self._begins(piece), piece.elements)
            into.add_(averaged.to(torch.float32))

    def _fp32_gradient(self) -> Tensor:
        if self._in_fp32 is None:
            self._in_fp32 = torch.zeros(self.partitions.size, dtype=torch.float32, device=self._device)
            self._observer.assign(self._in_fp32, Category.GRADIENT, "deepspeed.fp32_partition")
        return self._in_fp32

    def _all_reduced(self, tensor: Tensor) -> Tensor:
        sent = tensor.to(getattr(torch, self._zero.communication_dtype))
        if self._ranks > 1:
            dist.all_reduce(sent, group=self._group)
        return sent

    def _keep(self, number: int) -> None:
        grad = self._trained[number].grad
        assert grad is not None
        if self._zero.offload:
            self._keep_on_host(number, grad)
            return
        if self._zero.accumulates_in_fp32:
            return
        if self._in_partition is None:
            elements = sum(self.partitions.sizes[each] for each in self._own)
            self._in_partition = torch.empty(elements, dtype=self._dtype, device=self._device)
            self._in_partition_filled = 0
            self._observer.assign(self._in_partition, Category.GRADIENT, "deepspeed.partition")
        kept = self._in_partition.narrow(0, self._in_partition_filled, grad.numel())
        kept.copy_(grad.reshape(-1))
        grad.data = kept.view(grad.shape)
        self._in_partition_filled += grad.numel()

    def _keep_on_host(self, number: int, grad: Tensor) -> None:
        piece = self._own[number]
        if self._micro_step > 0 or not self.last_micro_batch:
            self._accumulate_on_host(number, grad)
        if not self.last_micro_batch:
            return
        source = grad.reshape(-1).narrow(0, piece.start, piece.elements)
        self._norms[number] = source.to(torch.double).norm(2)
        _is_infinite(grad)
        low = source.to(torch.float32)
        partition, begin = self._master.grad, self._begins(piece)
        on_host(lambda: _copy(partition.narrow(0, begin, piece.elements), low))  # type: ignore[union-attr]
        self._trained[number].grad = None

    def _accumulate_on_host(self, number: int, grad: Tensor) -> None:
        kept = self._to_host.get(number)
        if kept is None:
            kept = host_tensor(grad.numel(), self._dtype, pinned=self._zero.pinned)
            self._to_host[number] = kept
        if self._micro_step > 0:
            before = self._offload_buffer.narrow(0, 0, grad.numel())
            on_host(lambda: _copy(before, kept))
            grad.view(-1).add_(before)
        on_host(lambda: _copy(kept, grad.view(-1)))

    def _begins(self, piece: Piece) -> int:
        """Where a piece begins in this rank's partition."""
        return self.partitions.offsets[piece.parameter] + piece.start - self._rank * self.partitions.size

    def end_micro_batch(self) -> None:
        """After each backward: what waits is reduced; in stage 1 all gradients, after the last."""
        if self._zero.stage == 1:
            if not self.last_micro_batch:
                return
            if not self._zero.overlap_comm:
                for number in range(len(self._trained)):
                    self._into_bucket(number)
        self._reduce()
        if self._side is not None:
            torch.cuda.synchronize()
        if not self._zero.offload:
            self._accumulate()
        self._bucket = _Bucket()
        self._in_partition = None
        for parameter in self._trained:
            parameter.grad = None

    @torch.no_grad()
    def _accumulate(self) -> None:
        if self._zero.accumulates_in_fp32:
            if self.last_micro_batch:
                whole = self._fp32_gradient()
                self._averaged = [whole.narrow(0, self._begins(piece), piece.elements) for piece in self._own.values()]
            return
        own = [self._trained[number] for number in self._own]
        found = [torch.zeros_like(each) if each.grad is None else each.grad for each in own]
        if self._accumulated is None:
            self._accumulated = found
        else:
            for before, new in zip(self._accumulated, found, strict=True):
                before.add_(new)
        if self.last_micro_batch:
            self._averaged = [
                grad.contiguous().view(-1).narrow(0, piece.start, piece.elements)
                for grad, piece in zip(self._accumulated, self._own.values(), strict=True)
            ]
            missing = self.partitions.size - sum(piece.elements for piece in self._own.values())
            if missing:
                self._averaged.append(torch.zeros(missing, dtype=self._dtype, device=self._device))
            self._accumulated = None

    # -- step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Norm, clipping, the optimizer over the partition, and the updated parameters to all ranks."""
        assert closure is None
        self._micro_step = -1
        if self._zero.offload:
            self._step_on_host()
        else:
            self._step_on_device()
        if self._ranks > 1:
            _gather(self._flat, self._share, group=self._group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        assert set_to_none
        for parameter in self._trained:
            parameter.grad = None

    def _step_on_device(self) -> None:
        if self._zero.checks_overflow:
            self._look_for_overflow()
        norm = self._norm() if self._zero.computes_norm else None
        flat = self._fp32_gradient() if self._zero.accumulates_in_fp32 else _flatten_dense_tensors(self._averaged)
        grad = flat.to(torch.float32)
        del flat
        self._observer.assign(grad, Category.GRADIENT, "deepspeed.fp32_partition")
        self._master.grad = grad
        self._averaged, self._in_fp32 = [], None
        _scale(grad, norm, self._clipping, self._dtype)
        del grad
        with torch.enable_grad():
            self.optim.step()
        self._master.grad = None
        self._share.copy_(self._master)

    def _step_on_host(self) -> None:
        self._norms = {}
        self._wait()

        def work() -> None:
            assert self._master.grad is not None
            if self._clipping:
                nn.utils.clip_grad_norm_([self._master], self._clipping)
            with torch.enable_grad():
                self.optim.step()
            self._low_on_host.copy_(self._master)

        on_host(work)
        on_host(lambda: _copy(self._share, self._low_on_host))

    def _wait(self) -> None:
        """Copies to the host have ended before the host reads them."""
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def _look_for_overflow(self) -> None:
        found = torch.zeros([1], dtype=torch.float, device=self._device)
        for grad in self._averaged:
            found += _is_infinite(grad)
        if self._ranks > 1:
            dist.all_reduce(found.bool().byte(), op=dist.ReduceOp.MAX, group=self._group)

    def _norm(self) -> Tensor:
        """In double precision: a copy of each gradient, one after the other."""
        norms = [
            torch.linalg.vector_norm(grad.to(torch.double), ord=2.0)
            for grad, _ in zip(self._averaged, self._own, strict=False)
        ]
        total = torch.stack(norms).pow(2.0).sum().float() if norms else torch.zeros((), device=self._device)
        if self._ranks > 1:
            dist.all_reduce(total, group=self._group)
        return total.pow(0.5)

    def _on_side(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._side is None else torch.cuda.stream(self._side)


def parts(optimizer: Optimizer) -> tuple[int, ...]:
    """For each rank the kind of its partition; empty for another optimizer."""
    return optimizer.partitions.kinds() if isinstance(optimizer, DividedByDeepSpeed) else ()


def _fits_twice(spec: job.Job, more: int) -> bool:
    """Whether DeepSpeed flattens on the device. It asks NVML what is free; here it is the GPU less the parameters."""
    capacity = spec.cluster.gpu.total_bytes - spec.cluster.held_by_others_bytes
    return capacity <= 0 or capacity >= 2 * more


def _copy(destination: Tensor, source: Tensor) -> None:
    with torch.no_grad():
        destination.copy_(source, non_blocking=destination.is_pinned() or source.is_pinned())


def _is_infinite(tensor: Tensor) -> Tensor:
    return torch.isfinite(tensor.amax()).logical_and(torch.isfinite(tensor.amin())).logical_not()


def _scale(grad: Tensor, norm: Tensor | None, limit: float, dtype: torch.dtype) -> None:
    """By the limit, in place; under fp16 by the loss scale as well, one factor for both."""
    if limit and norm is not None:
        grad.mul_(1.0 / ((norm + 1e-6) / limit).clamp(min=1.0))
    elif dtype == torch.float16:
        grad.mul_(1.0)
