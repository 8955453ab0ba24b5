"""DeepSpeed's own ZeRO stages around a model: its import, partitions, engine, and what its tensors are for."""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from planner import upstream
from planner.distribution import install_command
from planner.errors import SpecError
from planner.events import Category
from planner.job import deepspeed_config, schema
from planner.training import absent_peers
from planner.training.log_levels import raise_log_level
from planner.training.observers import NullObserver, Observer

_KEEP_A_WORLD = (
    "deepspeed.accelerator.real_accelerator",
    "deepspeed.comm.comm",
    "deepspeed.runtime.zero.parameter_offload",
    "deepspeed.runtime.zero.partition_parameters",
    "deepspeed.utils.groups",
)
"""Modules whose globals a run changes (0.19.8)."""
_COUNTING = ("Init", "InsertPostInitMethodToModuleSubClasses", "AllGatherCoalescedHandle")
"""Classes of partition_parameters.py that count on themselves."""

_COMPARISONS = tuple(
    f"deepspeed.runtime.zero.{module}:assert_ints_same_as_other_ranks"
    for module in ("partition_parameters", "partitioned_param_coordinator", "stage3")
)
"""Where ranks ask whether they go the same way; absent peers agree."""
_BEGINNINGS = (
    "deepspeed.runtime.engine:DeepSpeedEngine.__init__",
    "deepspeed.runtime.zero.partition_parameters:Init.__init__",
)
_WORLD: dict[str, Callable[[Any], Any]] = {
    # deepspeed.zero.Init leaves its own in the place of it.
    "torch.nn.functional:linear": lambda real: real,
    # Between CPUs it would compile a reduction of its own, at run time: what reduces is torch's process group.
    "deepspeed.comm.torch:build_shm_op": lambda _real: lambda *_arguments: None,
}


@contextmanager
def use_deepspeed(device: torch.device, stage: int) -> Iterator[None]:
    """Inside, DeepSpeed runs on this type of device, in the world of torch.distributed; afterwards all that it keeps
    for a process is as before. Raises SpecError where it is not installed."""
    require(device.type, stage)
    with ExitStack() as after:
        if not torch.distributed.is_initialized():
            after.enter_context(absent_peers.join(0, 1))  # a world of one, which nobody has made
        for name in _KEEP_A_WORLD:
            after.callback(_restoring(importlib.import_module(name)))
        partitions: Any = importlib.import_module("deepspeed.runtime.zero.partition_parameters")
        for name in _COUNTING:
            after.callback(_restoring(getattr(partitions, name)))
        after.enter_context(upstream.patch_targets("deepspeed world", wrapped=_WORLD))
        # A launcher says which device of its node a process has: this one sees its own alone.
        after.enter_context(mock.patch.dict(os.environ, {"LOCAL_RANK": os.environ.get("LOCAL_RANK", "0")}))
        if torch.distributed.get_backend() == absent_peers.BACKEND:
            after.enter_context(peers_agree())
        after.enter_context(raise_log_level("DeepSpeed"))  # it logs its whole config
        _choose(device.type)
        yield


@contextmanager
def peers_agree() -> Iterator[None]:
    """Inside, absent peers go the way of this rank wherever DeepSpeed compares them. Imports DeepSpeed."""
    with upstream.patch_targets("deepspeed peers", replaced=dict.fromkeys(_COMPARISONS, _agree)):
        yield


@contextmanager
def in_a_program(begins: Callable[[], None]) -> Iterator[None]:
    """Inside, a program's own DeepSpeed has peers that agree; `begins` is called before an engine is made or a model is
    divided. That the package is imported says nothing: libraries do so wherever it is installed."""

    def telling(real: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(real)
        def init(*arguments: Any, **named: Any) -> None:
            begins()
            real(*arguments, **named)

        return init

    with peers_agree(), upstream.patch_targets("program's deepspeed", wrapped=dict.fromkeys(_BEGINNINGS, telling)):
        yield


def imported_deepspeed() -> Any:
    """The package; see `require`."""
    return importlib.import_module("deepspeed")


def require(device_type: str, stage: int) -> None:
    """Imports the package for this type of device. Raises SpecError where it is not installed."""
    try:
        with raise_log_level("DeepSpeed"), mock.patch.dict(os.environ, {"DS_ACCELERATOR": device_type}):
            imported_deepspeed()
    except ImportError as missing:
        raise SpecError(
            f"ZeRO stage {stage} is run by DeepSpeed {deepspeed_config.VERSION} itself, which is not installed here",
            remedy=install_command("deepspeed"),
            place=_PLACE,
        ) from missing


def _agree(_numbers: list[int]) -> None: ...


def _choose(device_type: str) -> None:
    real: Any = importlib.import_module("deepspeed.accelerator.real_accelerator")
    module: Any = importlib.import_module(f"deepspeed.accelerator.{device_type}_accelerator")
    chosen = vars(module)[f"{device_type.upper()}_Accelerator"]
    if not isinstance(real.get_accelerator(), chosen):
        real.set_accelerator(chosen())


def _restoring(owner: Any) -> Callable[[], None]:
    """What puts the attributes of a module or a class back as they are now, and fills its containers again."""
    names = [name for name in vars(owner) if not name.startswith("__")]
    before = {name: vars(owner)[name] for name in names}
    contents = {name: copy.copy(each) for name, each in before.items() if isinstance(each, dict | list | set)}

    def restore() -> None:
        for name, each in before.items():
            if vars(owner).get(name) is not each:
                setattr(owner, name, each)
        for name, content in contents.items():
            _refill(before[name], content)

    return restore


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    else:
        container.update(content)


_START_ALIGNMENT = 2
"""Elements, so that a partition of 16-bit numbers starts at 4 bytes."""
_MOST_KINDS = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements of one parameter in one partition."""

    parameter: int
    rank: int
    start: int
    """Within the parameter."""
    elements: int


@dataclass(frozen=True)
class Partitions:
    """`sizes` are the elements of the parameters, in the order of the optimizer."""

    sizes: tuple[int, ...]
    ranks: int

    @property
    def total(self) -> int:
        """Elements of the flat buffer, padding included."""
        alignment = _START_ALIGNMENT * self.ranks
        return -(-sum(self.sizes) // alignment) * alignment

    @property
    def padding(self) -> int:
        return self.total - sum(self.sizes)

    @property
    def size(self) -> int:
        """Elements of each partition."""
        return self.total // self.ranks

    @property
    def offsets(self) -> list[int]:
        """Where each parameter begins."""
        return [0, *itertools.accumulate(self.sizes)][: len(self.sizes)]

    @cached_property
    def pieces(self) -> list[list[Piece]]:
        """For each parameter its pieces, in the order of ranks."""
        return [
            list(self._split_range(number, offset, size))
            for number, (offset, size) in enumerate(zip(self.offsets, self.sizes, strict=True))
        ]

    def of_rank(self, rank: int) -> list[Piece]:
        """What is in one partition."""
        return [piece for pieces in self.pieces for piece in pieces if piece.rank == rank]

    def kinds(self) -> tuple[int, ...]:
        """For each rank a number, equal where two hold gradients of the same sizes.

        Where there are more than eight kinds, three are left, so that a plan does not grow with the world: the ranks
        that hold most, those that hold least, and all others, whose sizes lie in between.
        """
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.ranks)]
        for pieces in self.pieces:
            for piece in pieces:
                found[piece.rank].append((self.sizes[piece.parameter], piece.elements))
        shapes = [(sum(whole for whole, _ in each), tuple(sorted(each))) for each in found]
        ordered = sorted(set(shapes))
        if len(ordered) > _MOST_KINDS:
            return tuple(0 if each == ordered[-1] else 1 if each == ordered[0] else 2 for each in shapes)
        return tuple(ordered.index(each) for each in shapes)

    def _split_range(self, number: int, offset: int, size: int) -> list[Piece]:
        found, start = [], 0
        while start < size:
            rank = (offset + start) // self.size
            elements = min(size - start, (rank + 1) * self.size - offset - start)
            found.append(Piece(number, rank, start, elements))
            start += elements
        return found


_ZERO = "deepspeed.runtime.zero"
_COORDINATOR = f"{_ZERO}.partitioned_param_coordinator:PartitionedParameterCoordinator"
_STAGE_3 = f"{_ZERO}.stage3:DeepSpeedZeroOptimizer_Stage3"
_STAGES_1_AND_2 = f"{_ZERO}.stage_1_and_2:DeepSpeedZeroOptimizer"
_COMMUNICATING = (
    f"{_COORDINATOR}._PartitionedParameterCoordinator__all_gather_params_",
    f"{_STAGE_3}._DeepSpeedZeroOptimizer_Stage3__avg_scatter_grads",
    f"{_STAGE_3}._DeepSpeedZeroOptimizer_Stage3__avg_scatter_contiguous_grads",
)
"""Methods that allocate what is sent and received."""


@contextmanager
def observe_deepspeed(observer: Observer) -> Iterator[None]:
    """Inside, the observer hears what the engine's optimizer allocates in a step, and what it is for."""
    if isinstance(observer, NullObserver):
        yield
        return
    wrapped: dict[str, Callable[[Any], Any]] = {
        target: partial(_communicating, observer=observer) for target in _COMMUNICATING
    }
    wrapped |= {
        f"{_STAGES_1_AND_2}.setup_buckets": partial(_then, tell=partial(_tell_buckets, observer)),
        f"{_STAGES_1_AND_2}.copy_grads_in_partition": partial(_then, tell=partial(_tell_partition, observer)),
        f"{_STAGES_1_AND_2}._build_compact_grad_partition_buffer": partial(_telling_built, observer=observer),
        f"{_STAGES_1_AND_2}._optimizer_step": partial(_telling_before_the_step, observer=observer),
    }
    with upstream.patch_targets("deepspeed roles", wrapped=wrapped):
        yield


def tell_parameters(model: nn.Module, observer: Observer) -> None:
    """The parameters of a model that the engine is about to take, and from then on their gradients."""
    for name, parameter in model.named_parameters():
        divided = getattr(parameter, "ds_tensor", None)
        if divided is not None:
            observer.assign(divided, Category.PARAMETER, name)
        if parameter.requires_grad:
            # Before the engine's own hook, which takes the gradient away.
            parameter.register_post_accumulate_grad_hook(partial(_tell_gradient, observer, name))


def tell_flat(divided: Any, observer: Observer) -> None:
    """Where the engine's optimizer keeps the parameters and this rank's partitions."""
    if hasattr(divided, "bit16_groups_flat"):
        _tell_flat_of_stages_1_and_2(divided, observer)
    else:
        _tell_flat_of_stage_3(divided, observer)


def tell_whole(engine: Any, observer: Observer) -> None:
    """Under stage 3, parameters that are too small to be divided: from their first use on they stay whole."""
    for parameter in getattr(engine.optimizer, "persistent_parameters", ()):
        observer.assign(parameter.data, Category.PARAMETER, "deepspeed.persistent")


def tell_state(engine: Any, observer: Observer) -> None:
    """What the optimizer inside the engine's keeps of this rank's partitions."""
    inside: torch.optim.Optimizer = engine.optimizer.optimizer
    for state in inside.state.values():
        for key, value in state.items():
            if isinstance(value, Tensor):
                observer.assign(value, Category.OPTIMIZER_STATE, f"deepspeed.{key}")


def _tell_gradient(observer: Observer, name: str, parameter: Tensor) -> None:
    if parameter.grad is not None:
        observer.assign(parameter.grad, Category.GRADIENT, name)


def _tell_flat_of_stages_1_and_2(divided: Any, observer: Observer) -> None:
    for flat in divided.bit16_groups_flat:
        observer.assign(flat, Category.PARAMETER, "deepspeed.flat")
    if divided.cpu_offload:
        observer.assign(divided.temp_grad_buffer_for_gpu_offload, Category.BUCKET, "deepspeed.offload")
        _tell_offloaded_of_stages_1_and_2(divided, observer)
        return
    for partition in divided.single_partition_of_fp32_groups:
        observer.assign(partition, Category.OPTIMIZER_STATE, "deepspeed.fp32_partition")


def _tell_offloaded_of_stages_1_and_2(divided: Any, observer: Observer) -> None:
    """What rests on the host: master weights with their gradients, and buffers on the way there and back."""
    for partition in divided.single_partition_of_fp32_groups:
        observer.assign(partition, Category.OPTIMIZER_STATE, "deepspeed.fp32_partition")
        if partition.grad is not None:
            observer.assign(partition.grad, Category.GRADIENT, "deepspeed.fp32_partition")
    for buffer in divided.param_buffer_of_bit16_for_cpu_offload_groups:
        observer.assign(buffer, Category.PARAMETER, "deepspeed.offload")
    observer.assign(divided.temp_grad_buffer_for_cpu_offload, Category.BUCKET, "deepspeed.offload")


def _tell_flat_of_stage_3(divided: Any, observer: Observer) -> None:
    for flat in divided.fp16_partitioned_groups_flat:
        observer.assign(flat, Category.PARAMETER, "deepspeed.partitions")
    for flat in divided.fp32_partitioned_groups_flat:
        observer.assign(flat, Category.OPTIMIZER_STATE, "deepspeed.fp32_partitions")
        if flat.grad is not None:
            observer.assign(flat.grad, Category.GRADIENT, "deepspeed.fp32_partitions")
    for flat in divided.param_groups_fp16_flat_cpu_memory:
        observer.assign(flat, Category.PARAMETER, "deepspeed.offload")
    observer.assign(divided.grad_partitions_flat_buffer, Category.GRADIENT, "deepspeed.partitions")
    _tell_buckets(observer, divided)


def _tell_buckets(observer: Observer, divided: Any) -> None:
    """One buffer to each dtype, or several where communication overlaps."""
    for bucket in divided.ipg_buckets.values():
        for buffer in bucket.buffer if isinstance(bucket.buffer, list) else [bucket.buffer]:
            if buffer is not None:
                observer.assign(buffer, Category.BUCKET, "deepspeed.ipg")


def _tell_partition(observer: Observer, divided: Any) -> None:
    for buffer in getattr(divided, "accumulated_grads_in_cpu", {}).values():
        observer.assign(buffer, Category.GRADIENT, "deepspeed.accumulated")
    if divided.grads_in_partition is not None:
        observer.assign(divided.grads_in_partition, Category.GRADIENT, "deepspeed.partition")


def _communicating(method: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    name = method.__name__.strip("_")

    @wraps(method)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        with observer.region(Category.COMMUNICATION, f"deepspeed.{name}"):
            return method(*arguments, **named)

    return wrapper


def _then(method: Callable[..., Any], tell: Callable[[Any], None]) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(self: Any, *arguments: Any, **named: Any) -> Any:
        result = method(self, *arguments, **named)
        tell(self)
        return result

    return wrapper


def _telling_built(method: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        built = method(*arguments, **named)
        observer.assign(built.flat_partition, Category.GRADIENT, "deepspeed.fp32_partition")
        return built

    return wrapper


def _telling_before_the_step(method: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(self: Any, group: int) -> Any:
        gradient = self.single_partition_of_fp32_groups[group].grad
        if gradient is not None and not self.cpu_offload:
            observer.assign(gradient, Category.GRADIENT, "deepspeed.fp32_partition")
        return method(self, group)

    return wrapper


_PLACE = "parallel.deepspeed"
_TRAINERS_CONFIG = "transformers.integrations.deepspeed:_hf_deepspeed_config_weak_ref"


def uses_engine(spec: schema.Job) -> bool:
    """Whether the job is run by DeepSpeed's own engine."""
    return spec.parallel.deepspeed is not None


def stage_of(spec: schema.Job) -> int:
    """The stage of a job that the engine runs."""
    return deepspeed_config.zero_of(spec).stage


def resolve_job(spec: schema.Job) -> schema.Job:
    """The job as the engine makes it: the model cast, the config's optimizer in place of the job's.

    The cast comes before the model is moved to the device, and not at all in float32 (DeepSpeed 0.19.8,
    runtime/engine.py).
    """
    if not uses_engine(spec):
        return spec
    zero = deepspeed_config.zero_of(spec)
    model = spec.model if zero.dtype == "float32" else replace(spec.model, parameter_dtype=zero.dtype)
    return replace(spec, model=model, train=replace(spec.train, optimizer=zero.optimizer))


@contextmanager
def prepare_engine(spec: schema.Job, device: torch.device, observer: Observer) -> Iterator[None]:
    """Inside, a job that is run by the engine finds DeepSpeed in its world, and the observer hears what it sends."""
    if not uses_engine(spec):
        yield
        return
    with (
        use_deepspeed(device, stage_of(spec)),
        observe_deepspeed(observer),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", FutureWarning)  # of torch, whose collectives have new names
        yield


@contextmanager
def partitioning(spec: schema.Job) -> Iterator[None]:
    """Inside, under stage 3, the parameters of every module are divided as soon as it is made.

    By `deepspeed.zero.Init`; for a model of transformers by its own use of it, as under its Trainer."""
    if not uses_engine(spec) or stage_of(spec) != 3:
        yield
        return
    # What torch remembers of itself, it has to remember as it is outside the context, which replaces it.
    importlib.import_module("torch._dynamo")
    torch.utils._device._device_constructors()
    library, config = imported_deepspeed(), deepspeed_config.engine_config(spec)
    library.comm.init_distributed(dist_backend=torch.distributed.get_backend(), verbose=False)
    with _refusing():
        if spec.model.hf_config is None:
            with library.zero.Init(config_dict_or_path=config):
                yield
        else:
            trainers = _TrainerConfig(config)
            with upstream.patch_targets("trainer's deepspeed config", replaced={_TRAINERS_CONFIG: lambda: trainers}):
                yield


@dataclass(frozen=True)
class _TrainerConfig:
    """What transformers keeps of its Trainer's config (5.23, integrations/deepspeed.py)."""

    config: Mapping[str, Any]

    def is_zero3(self) -> bool:
        return True


def wrap_model(spec: schema.Job, model: nn.Module, optimizer: torch.optim.Optimizer, observer: Observer) -> Any:
    """The engine around the model, whose own optimizer divides what the job's optimizer steps. Raises SpecError for
    a config that DeepSpeed refuses, in its words."""
    watched = not isinstance(observer, NullObserver)
    if watched:
        tell_parameters(model, observer)
    with _refusing():
        engine, *_ = imported_deepspeed().initialize(
            model=model, optimizer=optimizer, config=deepspeed_config.engine_config(spec)
        )
    if watched:
        tell_flat(engine.optimizer, observer)
    return engine


def release(engine: Any, device: torch.device) -> None:
    """Ends the engine of a step that is over: its hooks on parameters would keep it, and all that it has, for the life
    of the process (0.19.8, stage_1_and_2.py and stage3.py, `_grad_acc_hooks`)."""
    with use_deepspeed(device, engine.zero_optimization_stage()):
        imported_deepspeed().comm.init_distributed(dist_backend=torch.distributed.get_backend(), verbose=False)
        engine.destroy()


def parts(engine: Any) -> tuple[int, ...]:
    """For each rank the kind of its partition under stages 1 and 2; under stage 3 all are alike, and there are none."""
    groups = getattr(engine.optimizer, "bit16_groups", None)
    if groups is None:
        return ()
    (group,) = groups
    ranks = torch.distributed.get_world_size(engine.optimizer.dp_process_group)
    return Partitions(tuple(each.numel() for each in group), ranks).kinds()


@contextmanager
def _refusing() -> Iterator[None]:
    """DeepSpeed says what it refuses by assertions and by pydantic's errors, which are ValueErrors."""
    try:
        yield
    except (AssertionError, ValueError, NotImplementedError) as refusal:
        said = " ".join(str(refusal).split())[:400]
        raise SpecError(f"DeepSpeed {deepspeed_config.VERSION} refuses the config: {said}", place=_PLACE) from refusal
