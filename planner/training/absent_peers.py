"""Runs one rank of any world in one process: collectives complete at once, and checkpoint code agrees with itself."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from planner import upstream
from planner.errors import MeasureError, TraceError
from planner.job import schema
from planner.upstream import checking, torch_releases


# DTensor keeps which placements an operator leads to, with the mesh and with the local shapes, and finds them again by
# a mesh that is equal (torch 2.13, distributed/tensor/_sharding_prop.py, _redistribute.py,
# autograd/python_variable.cpp). The next world of the process may have an equal mesh with groups of other names, or be
# another rank of it.
def forget() -> None:
    """Meshes and DTensor start anew, in this thread and in the one in which autograd runs for a GPU."""
    # Up to 2.9 torch keeps flattened meshes by meshes that are equal, whichever rank they were made for.
    meshes = getattr(sys.modules["torch.distributed.device_mesh"], "_mesh_resources", None)
    for name in ("root_to_flatten_mapping", "flatten_name_to_root_dims", "child_to_root_mapping"):
        getattr(meshes, name, {}).clear()
    tensors: Any = sys.modules.get("torch.distributed.tensor")
    if tensors is None:
        return
    from torch.distributed.tensor import _random, _redistribute, _sharding_prop

    _random._rng_tracker = None  # made with a broadcast by the first random operator of a process
    propagator = tensors.DTensor._op_dispatcher.sharding_propagator
    # It keeps one cache to each thread: a new one forgets them all.
    propagator.propagate_op_sharding = _sharding_prop.LocalLRUCache(propagator.propagate_op_sharding_non_cached)
    clear = getattr(getattr(_redistribute, "_gen_transform_infos", None), "cache_clear", None)
    if clear is not None:
        clear()
    getattr(_redistribute, "_planner_cache", {}).clear()
    clear_in_c = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)  # since torch 2.10
    if clear_in_c is None:
        return
    clear_in_c()
    if torch.cuda.is_available():  # a step may be measured on a machine without a GPU
        _BackwardCall.apply(torch.zeros((), device="cuda", requires_grad=True)).backward()  # type: ignore[no-untyped-call]


class _BackwardCall(torch.autograd.Function):
    """Its backward runs in the thread of the device."""

    @staticmethod
    def forward(_context: Any, given: torch.Tensor) -> torch.Tensor:
        return given.clone()

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        torch._C._clear_DTensor_sharding_propagator_cache()
        return gradient


# Reductions and broadcasts leave the tensors as they are; gathers and scatters are done by torch's fake process group,
# which fills what it can from this rank's own tensors. torch's fake group alone does not do: the future of its work
# carries no value (torch 2.11 to 2.13, torch/csrc/distributed/c10d/FakeProcessGroup.hpp), and the reducer of
# DistributedDataParallel takes the reduced bucket from that future (reducer.cpp).
class Issued(Protocol):
    """A collective on the stream of its communicator."""

    def wait(self) -> None:
        """The current stream waits for it."""

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """It takes part in deciding when their memory is free."""


class Work(dist.Work):
    """Work that is done, as far as anybody can tell."""

    def __init__(self, value: Any, issued: Issued) -> None:
        super().__init__()
        self._issued = issued
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(value)

    def wait(self, *_timeout: Any, **_named: Any) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        self._issued.wait()

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


BACKEND = "absent_peers"
_RECORDER = "torch.distributed.distributed_c10d:_maybe_attach_flight_recorder"
_UNSCALE = "torch.amp.grad_scaler:GradScaler._unscale_grads_"


@contextmanager
def join(rank: int, world_size: int) -> Iterator[None]:
    """Inside, this process is `rank` of a world of `world_size` whose peers are absent; afterwards it is alone again.

    For tensors on the host and on any CUDA device. Raises MeasureError if this process is in a world already, or if
    there is no such rank.
    """
    if not 0 <= rank < world_size:
        raise MeasureError(f"there is no rank {rank} in a world of {world_size}", allowed=f"0 to {world_size - 1}")
    if dist.is_initialized():
        raise MeasureError(
            "this process has joined a world already", remedy="leave it first (torch.distributed.destroy_process_group)"
        )
    _register()
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # It asks for the backends of groups, which absent peers do not have.
    with upstream.patch_targets("absent peers", replaced={_RECORDER: lambda *_arguments: None}):
        dist.init_process_group(BACKEND, rank=rank, world_size=world_size, store=FakeStore())
        try:
            yield
        finally:
            dist.destroy_process_group()
            forget()


@contextmanager
def take_every_step() -> Iterator[None]:
    """Inside, no GradScaler finds an infinite gradient: an optimizer whose step is skipped would have no state.

    What absent peers would have sent is not there, and the first scales of fp16 overflow by design; neither says
    anything about memory. Nothing is allocated for it.
    """

    def find_nothing(real: Callable[..., dict[torch.device, Tensor]]) -> Callable[..., dict[torch.device, Tensor]]:
        def unscale(*arguments: Any, **keywords: Any) -> dict[torch.device, Tensor]:
            infinite = real(*arguments, **keywords)
            for flag in infinite.values():
                flag.zero_()
            return infinite

        return unscale

    with upstream.patch_targets("every step is taken", wrapped={_UNSCALE: find_nothing}):
        yield


def are_here() -> bool:
    """Whether the other ranks of this process's world are absent."""
    return dist.is_initialized() and isinstance(dist.group.WORLD, AbsentPeers)


def agree_to(vote: Tensor) -> Tensor:
    """A vote as the peers see it: those who are absent agree to everything; others have voted."""
    if dist.get_backend() != BACKEND:
        return vote
    return torch.ones(vote.shape, dtype=vote.dtype)


class WithoutBackends(dist.ProcessGroup):
    """A process group in Python. torch 2.13 keeps name and description in a group's backends (c10d/ProcessGroup.cpp),
    of which it has none."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._named, self._described = "", ""

    @property
    def group_name(self) -> Any:
        return self._named

    @property
    def group_desc(self) -> str:
        return self._described

    devices: ClassVar[tuple[str, ...]] = ()
    """What it says of the devices that it has backends for; see `naming_devices`."""

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(each) for each in self.devices]

    def _set_group_name(self, name: str) -> None:
        self._named = name

    def _set_group_desc(self, description: str) -> None:
        self._described = description


@contextmanager
def naming_devices() -> Iterator[None]:
    """Inside, groups say that they have backends for the host and the device, as checkpoints want it. Compilers
    would ask for these backends."""
    WithoutBackends.devices = ("cpu", "cuda")
    try:
        yield
    finally:
        WithoutBackends.devices = ()


class AbsentPeers(WithoutBackends):
    """The process group of one rank in a world in which nobody answers and nobody is waited for."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        from torch._C._distributed_c10d import FakeProcessGroup

        # Since torch 2.10 it is not made by its constructor (c10d/FakeProcessGroup.hpp).
        made: Any = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)
        self._fake = made(rank, size)
        self.issued: Issued | None = None
        """The last collective, if it is heard and moves tensors of the device."""

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND

    def _get_backend(self, _device: Any) -> Any:
        """Asked whether it coalesces what pipelines send and receive, which it does not."""
        return self._fake

    def _start_coalescing(self, _device: Any) -> None:
        """Asked before torch 2.9 by what pipelines send and receive (distributed_c10d.py); 2.9 asks `_get_backend`."""

    def _end_coalescing(self, _device: Any) -> Any:
        return finished_work([])

    def barrier(self, *_options: Any, **_named: Any) -> Any:
        return finished_work([])


def _fill_in_place(_self: AbsentPeers, tensors: Any, *_options: Any, **_named: Any) -> Any:
    return finished_work(tensors)


def _fake_collective(name: str) -> Callable[..., Any]:
    def collective(self: AbsentPeers, outputs: Any, *arguments: Any, **named: Any) -> Any:
        getattr(self._fake, name)(outputs, *arguments, **named)
        return finished_work(outputs)

    return collective


def _gather(self: AbsentPeers, output: Tensor, given: Tensor) -> None:
    """Each part of the output is what this rank gives. As torch's fake group fills it, which copies part by part.

    FSDP2 gives the rank's own part of the output, which is then written by nobody: a copy onto itself is refused.
    """
    whole, own = output.detach().view(self.size(), *given.shape), self.rank()
    with torch.no_grad():
        if whole[own].data_ptr() != given.data_ptr():
            whole[own].copy_(given)
        for part in (whole[:own], whole[own + 1 :]):
            if part.numel():
                part.copy_(given)
    if output.is_cuda and (value := torch.ops.paper.known_value(given)) is not None:
        torch.ops.paper.remember_value(output, value.expand_as(whole).reshape(output.shape))


def _scatter(self: AbsentPeers, output: Tensor, given: Tensor) -> None:
    with torch.no_grad():
        output.detach().copy_(given.view(self.size(), *output.shape)[self.rank()])


def _filling(fill: Callable[[AbsentPeers, Tensor, Tensor], None], *, several: bool) -> Callable[..., Any]:
    """A collective of one output and one input, or of `several` of each."""

    def collective(self: AbsentPeers, outputs: Any, inputs: Any, *_options: Any, **_named: Any) -> Any:
        pairs = zip(outputs, inputs, strict=True) if several else [(outputs, inputs)]
        for output, given in pairs:
            fill(self, output, given)
        return finished_work(outputs if several else [outputs])

    return collective


def _to_all(
    self: AbsentPeers, output: Tensor, given: Tensor, output_sizes: Any = (), input_sizes: Any = (), *_options: Any
) -> Any:
    """In equal parts: peers that do the same as this rank send it what it sends to itself."""
    if len(output_sizes) or len(input_sizes):  # arrays of numpy, too
        for tensor, sizes in ((output, output_sizes), (given, input_sizes)):
            if len(sizes) and sum(sizes) != tensor.size(0):
                raise TraceError(
                    f"all_to_all_single splits {tensor.size(0)} rows in parts of {sum(sizes)} in all",
                    allowed="parts that sum to the rows; what a router of experts counts on the GPU is not known",
                    remedy="send every expert as many: with a capacity factor to which its tokens are padded",
                )
        self._fake.alltoall_base(output, given, output_sizes, input_sizes)
        return finished_work([output])
    own = given.detach().unflatten(0, (self.size(), -1))[self.rank()]
    output.detach().unflatten(0, (self.size(), -1)).copy_(own)
    return finished_work([output])


def finished_work(value: Any) -> Any:
    """Work that is done; its future has the value that the reducer and the communication hooks ask for."""
    from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]

    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return _create_work_from_future(future)


_COLLECTIVES: dict[str, Callable[..., Any]] = {
    # The value of the work's future is the first argument: the tensors that the collective fills.
    **dict.fromkeys(
        ("allreduce", "allreduce_coalesced", "broadcast", "reduce", "send", "recv", "recv_anysource"), _fill_in_place
    ),
    **{
        name: _fake_collective(name)
        for name in ("allgather", "allgather_coalesced", "reduce_scatter", "alltoall", "gather", "scatter")
    },
    # Several names for one: torch 2.13 has new ones.
    **dict.fromkeys(("alltoall_base", "all_to_all_single"), _to_all),
    **dict.fromkeys(("_allgather_base", "all_gather_single"), _filling(_gather, several=False)),
    **dict.fromkeys(("_reduce_scatter_base", "reduce_scatter_single"), _filling(_scatter, several=False)),
    **dict.fromkeys(
        ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"), _filling(_gather, several=True)
    ),
    **dict.fromkeys(
        ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"), _filling(_scatter, several=True)
    ),
}
Listener = Callable[[str, "AbsentPeers", Sequence[Any]], AbstractContextManager["Issued | None"]]
"""Hears of a collective with its arguments while it is issued."""
_listener: Listener | None = None


@contextmanager
def tell_collectives(listener: Listener) -> Iterator[None]:
    """Inside, every collective is told to the listener."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def _heard(name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
    def issue(self: AbsentPeers, *arguments: Any, **named: Any) -> Any:
        if _listener is None:
            return collective(self, *arguments, **named)
        given = (*arguments, *named.values())
        with _listener(name, self, given) as self.issued:
            done = collective(self, *arguments, **named)
        is_asynchronous = any(getattr(option, "asyncOp", False) for option in given)
        # Before 2.7 C++ lets go of the Python part of such work, and would wait forever (PyProcessGroup.hpp).
        if self.issued is None or not is_asynchronous or not torch_releases.since(2, 7):
            return done
        return Work(given[0], self.issued)

    return issue


for _name, _collective in _COLLECTIVES.items():
    setattr(AbsentPeers, _name, _heard(_name, _collective))
COLLECTIVES = tuple(_COLLECTIVES)
"""Methods of a process group that move tensors, by their names in torch."""


@cache
def _register() -> None:
    dist.Backend.register_backend(
        BACKEND, lambda _store, rank, size, _timeout: AbsentPeers(rank, size), devices=["cpu", "cuda"]
    )


_WRAPPER = "torch.distributed.checkpoint.utils:_DistWrapper.__init__"
_VALIDATE = "torch.distributed.checkpoint.default_planner:_validate_global_plan"
_BROADCASTS = (
    "torch.distributed._state_dict_utils:_broadcast_state_dict",
    "torch.distributed.checkpoint.state_dict:_broadcast_state_dict",
)
_OBJECTS = "torch.distributed:broadcast_object_list"


ANNOUNCED = "rank 0 announces the state dict that it sends: names and shapes are taken to be those of this rank's own"


@contextmanager
def alone(said: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Inside, checkpoints are saved and loaded without asking the other ranks; `said` hears what is assumed."""

    def coordinate_alone(real: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, *arguments: Any, **named: Any) -> None:
            real(self, *arguments, **named)
            # As `no_dist` has it, but that a rank keeps its number.
            self.use_dist, self.is_coordinator = False, True

        return init

    def accept_a_part(real: Callable[..., Any]) -> Callable[..., Any]:
        # A checkpoint is to be whole, of which only this rank's part is there. torch 2.11 says so by a truth value,
        # 2.13 by a list of what is wrong.
        return lambda *arguments: True if isinstance(real(*arguments), bool) else []

    wrapped: dict[str, upstream.Wrapper] = {
        _WRAPPER: coordinate_alone,
        _VALIDATE: accept_a_part,
        **dict.fromkeys(_BROADCASTS, partial(_announcing_own, said)),
    }
    with upstream.patch_targets("checkpoint peers", wrapped=wrapped):
        yield


def agree_about_checkpoints(train: schema.Train) -> AbstractContextManager[None]:
    """As `alone`, for a step that has to do with checkpoints in a world of absent peers.

    Raises TraceError if torch is not the one whose checkpoints planner knows.
    """
    if train.checkpoint_load is None and train.checkpoint_save is None:
        return nullcontext()
    checking.enforce("checkpoints")
    return alone() if dist.is_initialized() and dist.get_backend() == BACKEND else nullcontext()


def _announcing_own(said: Callable[[str], None], real: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(real)
    def broadcast(full: dict[str, Any], local: dict[str, Any], *arguments: Any, **named: Any) -> None:
        if dist.get_rank() == 0:
            real(full, local, *arguments, **named)
            return
        said(ANNOUNCED)
        announced = {name: _describe(value) for name, value in local.items()}

        def receive(objects: list[Any], *_arguments: Any, **_named: Any) -> None:
            objects[0] = announced

        with upstream.patch_targets("state dict announced", replaced={_OBJECTS: receive}):
            real(full, local, *arguments, **named)

    return broadcast


def _describe(value: Any) -> Any:
    """As rank 0 has it in its message (torch 2.13, _state_dict_utils.py, `_broadcast_state_dict`)."""
    from torch.distributed._state_dict_utils import _TensorInfo

    if not torch.is_tensor(value):
        return value
    if value.dim() == 0:
        return torch.zeros((), dtype=value.dtype)
    return _TensorInfo(value.size(), value.dtype)
