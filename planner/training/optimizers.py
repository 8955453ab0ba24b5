"""Optimizers: of torch.optim, of low-bit libraries, divided among replicas, in the backward; clipping."""

from __future__ import annotations

import copy
import difflib
import importlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer

from planner.errors import SpecError
from planner.job import schema
from planner.job.nodes import did_you_mean
from planner.training.device_mesh import World
from planner.training.keyword_arguments import check_arguments
from planner.training.log_levels import raise_log_levels
from planner.upstream import torch_releases


# torch 2.13 stacks no DTensors of different meshes, on which expert parallelism leaves the experts and the rest. As
# transformers' Trainer does (5.23, `_mixed_mesh_grad_norm`), and torchtitan: one norm for each mesh, then that of
# both.
def _group_by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return list(groups.values())


def clip(parameters: Iterable[nn.Parameter], limit: float) -> None:
    """Gradients scaled, in place, so that their norm is `limit` at most."""
    groups = _group_by_mesh(parameters)
    if len(groups) < 2:
        nn.utils.clip_grad_norm_(groups[0] if groups else [], limit)
        return
    total = torch.linalg.vector_norm(torch.stack([_norm(group) for group in groups]))
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, limit, total)


def _norm(group: Sequence[nn.Parameter]) -> Tensor:
    norm = nn.utils.get_total_norm([parameter.grad for parameter in group if parameter.grad is not None])
    if not isinstance(norm, DTensor):
        return norm
    # It remarks that one number is reduced along one axis after the other.
    with raise_log_levels("torch.distributed.tensor._redistribute"):
        return norm.full_tensor()


class InBackwardOptimizer(Optimizer):
    def __init__(self, trained: list[nn.Parameter], inside: dict[Tensor, Optimizer]) -> None:
        super().__init__(trained, {})
        self.inside = inside

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None

    def zero_grad(self, set_to_none: bool = True) -> None:
        assert set_to_none


def _one_for_each(kind: Any, trained: list[nn.Parameter], arguments: dict[str, Any]) -> InBackwardOptimizer:
    return InBackwardOptimizer(trained, {parameter: kind([parameter], **arguments) for parameter in trained})


@contextmanager
def step_in_backward(optimizer: Optimizer) -> Iterator[None]:
    """Inside, gradients are used up when they are accumulated, after whatever hooks were installed before."""
    if not isinstance(optimizer, InBackwardOptimizer):
        yield
        return

    def use_up(parameter: Tensor) -> None:
        inside = optimizer.inside[parameter]
        inside.step()
        inside.zero_grad()

    handles = [parameter.register_post_accumulate_grad_hook(use_up) for parameter in optimizer.inside]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# Every replica keeps the optimizer's state of its own part of the parameters, updates them, and sends them to the
# others. The parts are whole parameters, given largest first to the replica that has the least so far (torch 2.13,
# torch/distributed/optim/zero_redundancy_optimizer.py): they differ in size.
def _divide(
    kind: type[Optimizer], trained: Sequence[nn.Parameter], arguments: dict[str, Any], group: dist.ProcessGroup | None
) -> Optimizer:
    # Jobs that ask for it alone pay for the import.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(trained, kind, process_group=group, **arguments)


def parts(optimizer: Optimizer) -> tuple[int, ...]:
    """For each replica the number of the part it has: equal where two have parameters of the same shapes.

    Empty for an optimizer that is not divided.
    """
    partition = getattr(optimizer, "_partition_parameters", None)
    if partition is None:
        return ()
    numbers: dict[Any, int] = {}
    kinds = (
        tuple((parameter.shape, parameter.dtype) for group in groups for parameter in group["params"])
        for groups in partition()
    )
    return tuple(numbers.setdefault(kind, len(numbers)) for kind in kinds)


_PLACE = "train.optimizer"
_WANTS_A_CLOSURE = ("LBFGS",)


PACKAGES = {
    "bitsandbytes": "bitsandbytes.optim",
    "torchao": "torchao.optim",
    "transformers": "transformers.optimization",
}
"""Whose optimizers a job can name (`bitsandbytes.AdamW8bit`), and the module that has them."""


def names_of_torch() -> list[str]:
    """The optimizers of this torch's `torch.optim` that need no closure."""
    return sorted(_optimizers_in(torch.optim).keys() - set(_WANTS_A_CLOSURE))


def _optimizers_in(module: Any) -> dict[str, Any]:
    base = torch.optim.Optimizer
    return {n: c for n, c in vars(module).items() if inspect.isclass(c) and issubclass(c, base) and c is not base}


OptimizerMaker = Callable[[Any, list[nn.Parameter], dict[str, Any]], torch.optim.Optimizer]
"""Makes an optimizer of a class, over parameters, with arguments."""


def plain(kind: Any, trained: list[nn.Parameter], arguments: dict[str, Any]) -> torch.optim.Optimizer:
    # One kernel takes no DTensors of several meshes: each has a group of its own, as in transformers' Trainer (5.23).
    groups = _group_by_mesh(trained)
    given = trained if len(groups) == 1 else [{"params": group} for group in groups]
    made: torch.optim.Optimizer = kind(given, **arguments)
    return made


def build(
    spec: schema.Optimizer, parameters: Iterable[nn.Parameter], made: OptimizerMaker = plain
) -> torch.optim.Optimizer:
    """The optimizer over the parameters that need gradients; `made` where it is more than its class alone.

    Raises SpecError for an unknown name (with the nearest ones), for an argument that the class does not take (with
    those it takes), for a value that it refuses, and for a model in which nothing is trained.
    """
    cls = _class(spec.name)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise SpecError("no parameter of the model needs a gradient: there is nothing to train", place="model")
    arguments = check_arguments(cls, spec.arguments, _PLACE, taken=("params",))
    try:
        return made(cls, trained, arguments)
    except (ValueError, TypeError, RuntimeError) as refusal:
        raise SpecError(f"{spec.name} refuses its arguments: {refusal}", place=_PLACE) from refusal


def copy_to_meta(optimizer: Optimizer, shapes: Mapping[Tensor, torch.Size]) -> Optimizer:
    """The optimizer without state, over parameters of these shapes with gradients, on the meta device; those of its
    own parameters that have no shape here are left out."""

    def twin(parameter: Tensor) -> nn.Parameter:
        empty = torch.empty(shapes[parameter], dtype=parameter.dtype, device="meta")
        made = nn.Parameter(empty, requires_grad=empty.is_floating_point())
        made.grad = torch.empty_like(made)
        return made

    copied = copy.copy(optimizer)
    copied.state = defaultdict(dict)
    copied.param_groups = [
        # Kernels of devices are refused on meta, which makes the same state but for the counts of steps.
        {
            **group,
            **{key: False for key in ("fused", "capturable") if group.get(key)},
            "params": [twin(parameter) for parameter in group["params"] if parameter in shapes],
        }
        for group in optimizer.param_groups
    ]
    return copied


def unified_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Of its state, what lies in unified memory: that of bitsandbytes' paged optimizers (0.50, optim/optimizer.py,
    `get_state_buffer`), which no allocator of torch has."""
    states = (state for inside in stateful_optimizers(optimizer) for state in inside.state.values())
    tensors = (
        value
        for state in states
        for value in state.values()
        if isinstance(value, Tensor) and getattr(value, "is_paged", False)
    )
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


def stateful_optimizers(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers that keep the state: those that others have inside, or the optimizer itself."""
    if isinstance(optimizer, InBackwardOptimizer):
        return tuple(optimizer.inside.values())
    inside = getattr(optimizer, "optim", None)
    return (inside,) if isinstance(inside, torch.optim.Optimizer) else (optimizer,)


def _class(name: str) -> Any:
    package, _, kind = name.rpartition(".")
    if package:
        return _class_of_package(package, kind)
    known = names_of_torch()
    if name in known:
        return getattr(torch.optim, name)
    if name in _WANTS_A_CLOSURE:
        raise SpecError(
            f"{name} evaluates the model several times in one step, which is not modelled",
            allowed=", ".join(known),
            place=f"{_PLACE}.name",
        )
    if name == "Muon":
        torch_releases.require(name, place=f"{_PLACE}.name")
    by_lower = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=5, cutoff=0.5)
    # A wrong ending is likelier than a wrong beginning: AdamW before RAdam for `adamv`.
    near.sort(key=lambda other: other[:3] != name.lower()[:3])
    close = [by_lower[other] for other in near[:3]]
    raise SpecError(
        f"torch.optim has no optimizer {name!r}",
        allowed=", ".join(known),
        remedy=f"did you mean {', '.join(close)}?" if close else "",
        place=f"{_PLACE}.name",
    )


def _class_of_package(package: str, name: str) -> Any:
    if package not in PACKAGES:
        known = ", ".join(f"{each}.NAME" for each in PACKAGES)
        raise SpecError(f"optimizers of {package} are not known", allowed=known, place=f"{_PLACE}.name")
    try:
        # Jobs that ask for it alone pay for the import.
        known_classes = _optimizers_in(importlib.import_module(PACKAGES[package]))
    except ImportError as failure:
        raise SpecError(
            f"{package} cannot be imported: {failure}", remedy=f"pip install {package}", place=f"{_PLACE}.name"
        ) from failure
    if name not in known_classes:
        raise SpecError(
            f"{PACKAGES[package]} has no optimizer {name!r}",
            allowed=", ".join(sorted(known_classes)),
            remedy=did_you_mean(name, known_classes),
            place=f"{_PLACE}.name",
        )
    return known_classes[name]


def optimizer_maker(spec: schema.Job, world: World) -> OptimizerMaker:
    """How the job's optimizer is made."""
    if spec.parallel.dp_replicate.zero_redundancy_optimizer:
        return partial(_divide, group=world.group("dp_replicate"))
    return _one_for_each if spec.train.optimizer_in_backward else plain
