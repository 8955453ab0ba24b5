"""Optimizers: of torch.optim, of low-bit libraries, divided among replicas, in the backward; clipping."""

from __future__ import annotations

import copy
import difflib
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
from planner.job.bound.lower_bound import BITSANDBYTES
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


# Neither package is needed, nor the CUDA kernels and compiled functions that make the update in place; what their step
# takes beside the state is a few bytes for bitsandbytes, and for torchao whatever torch.compile makes of it, which is
# not counted. Facts from bitsandbytes 0.44 to 0.50.2 (bitsandbytes/optim/optimizer.py: blocks of 256) and torchao
# (torchao/optim/adam.py, subclass_8bit.py, subclass_4bit.py, subclass_fp8.py).
_LEAST = 4096
"""Both keep the state of smaller tensors in full."""
_PAGED_FROM = 100_000
"""Elements from which a paged optimizer of bitsandbytes keeps a state in unified memory."""
_BNB_BLOCK = 256


class _StateModel(torch.optim.Optimizer):
    """Takes the state of a parameter when it first has a gradient."""

    def __init__(self, params: Any, lr: float, betas: Any, eps: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if not self.state[parameter]:
                    self.state[parameter].update(self._make_state(parameter))
                self._after_update(parameter)

    def _make_state(self, parameter: Tensor) -> dict[str, Any]:
        raise NotImplementedError

    def _after_update(self, parameter: Tensor) -> None: ...


class _BitsAndBytes(_StateModel):
    bits, paged = 8, False
    copies: tuple[int, ...] = (1, 1)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        min_8bit_size: int = _LEAST,
        *,
        embeddings_in_32_bits: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
        if any(isinstance(parameter, DTensor) for group in self.param_groups for parameter in group["params"]):
            raise ValueError("the kernels of bitsandbytes take whole tensors, not the shards of a DTensor")
        self._least = min_8bit_size
        self._maps: list[Tensor] = []
        self.embeddings_in_32_bits = embeddings_in_32_bits
        self.in_32_bits: frozenset[int] = frozenset()
        """By `id`: parameters whose state is kept in full whatever their size."""

    def _make_state(self, parameter: Tensor) -> dict[str, Any]:
        device, size = parameter.device, parameter.numel()
        is_low = self.bits == 8 and size >= self._least and id(parameter) not in self.in_32_bits
        if is_low and not self._maps:
            # One table for signed and one for unsigned values serve all parameters.
            self._maps = [torch.zeros(256, device=device) for _ in self.copies]
        state: dict[str, Any] = {"step": 0}
        for number, copies in enumerate(self.copies, 1):
            state[f"state{number}"] = self._buffer(parameter, copies, torch.uint8 if is_low else torch.float32)
            if is_low:
                state[f"qmap{number}"] = self._maps[number - 1]
        if is_low:
            for number, copies in enumerate(self.copies, 1):
                state[f"absmax{number}"] = torch.zeros(copies * -(-size // _BNB_BLOCK), device=device)
        return state

    def _buffer(self, parameter: Tensor, copies: int, dtype: torch.dtype) -> Tensor:
        shape = parameter.shape if copies == 1 else (copies, *parameter.shape)
        if self.paged and copies * parameter.numel() >= _PAGED_FROM:
            # Unified memory (cudaMallocManaged), which no allocator of torch knows and which moves to the host.
            return torch.empty(shape, dtype=dtype, device="meta")
        return torch.zeros(shape, dtype=dtype, device=parameter.device)

    def _after_update(self, parameter: Tensor) -> None:
        if parameter.device.type == "cuda":
            torch.cuda.synchronize()


_NEVER_PAGED = ("RMSprop",)


def _bits_and_bytes() -> Iterator[tuple[str, type[_BitsAndBytes]]]:
    """bitsandbytes.optim as far as it is modelled, under the names that its classes have."""
    for base, copies in BITSANDBYTES.items():
        for bits, ending in ((8, "8bit"), (32, "")):
            for paged in (False, True)[: 1 if base in _NEVER_PAGED else 2]:
                name = f"{'Paged' * paged}{base}{ending}"
                yield (
                    f"bitsandbytes.{name}",
                    type(name, (_BitsAndBytes,), {"bits": bits, "paged": paged, "copies": copies}),
                )


class _TorchAo(_StateModel):
    usual_block, elements_to_a_code, code_dtype = 256, 1, torch.uint8
    table = 256
    """Entries of the table of the codes' values, one for each state; 0: none."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        block_size: int | None = None,
        bf16_stochastic_round: bool = False,  # noqa: ARG002  # an argument of torchao, which takes no memory
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
        self._names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[: 3 if amsgrad else 2]
        self._block = block_size or self.usual_block

    def _make_state(self, parameter: Tensor) -> dict[str, Any]:
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        state: dict[str, Any] = {"step": torch.tensor(0.0)}
        for name in self._names:
            if local.numel() >= _LEAST and local.numel() % self._block == 0:
                state |= {
                    f"{name}.{part}": torch.zeros(shape, dtype=dtype, device=local.device)
                    for part, shape, dtype in self._low(local)
                }
            else:
                state[name] = torch.zeros_like(local)
        return state

    def _low(self, local: Tensor) -> list[tuple[str, Sequence[int], torch.dtype]]:
        size = local.numel()
        shape = local.shape if self.elements_to_a_code == 1 else (size // self.elements_to_a_code,)
        scale = ("scale", (size // self._block,), torch.float32)
        table = [("qmap", (self.table,), torch.float32)] if self.table else []
        return [("codes", shape, self.code_dtype), scale, *table]


class _TorchAo4bit(_TorchAo):
    usual_block, elements_to_a_code, table = 128, 2, 16


class _TorchAoFp8(_TorchAo):
    code_dtype, table = torch.float8_e4m3fn, 0


MODELLED: dict[str, type[torch.optim.Optimizer]] = {
    **dict(_bits_and_bytes()),
    **{
        f"torchao.{base}{ending}": kind
        for base in ("Adam", "AdamW")
        for ending, kind in (("4bit", _TorchAo4bit), ("8bit", _TorchAo), ("Fp8", _TorchAoFp8))
    },
}
"""By the name that a job writes; Adam and AdamW differ in their arithmetic only."""


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


_OF_TRANSFORMERS = "transformers.Adafactor"
"""Its own class (transformers 5.23, optimization.py), which keeps and makes other tensors than torch's."""


def all_names() -> list[str]:
    """The optimizers that a job can name: those of this torch's `torch.optim` that need no closure, then those of other
    packages."""
    base = torch.optim.Optimizer
    kinds = {n: c for n, c in vars(torch.optim).items() if inspect.isclass(c) and issubclass(c, base) and c is not base}
    return [*sorted(kinds.keys() - set(_WANTS_A_CLOSURE)), *MODELLED, _OF_TRANSFORMERS]


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


def keep_embeddings_in_full(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """For the bitsandbytes optimizers that are told to: as transformers' Trainer registers it (5.23, trainer.py,
    `create_optimizer`), for the weight of every embedding."""
    weights = frozenset(id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding))
    for inside in stateful_optimizers(optimizer):
        if isinstance(inside, _BitsAndBytes) and inside.embeddings_in_32_bits:
            inside.in_32_bits = weights


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
    """Of its state, what lies in unified memory: no allocator of torch has it, and its tensors here have no memory."""
    states = (state for inside in stateful_optimizers(optimizer) for state in inside.state.values())
    tensors = (value for state in states for value in state.values() if isinstance(value, Tensor) and value.is_meta)
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


def stateful_optimizers(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers that keep the state: those that others have inside, or the optimizer itself."""
    if isinstance(optimizer, InBackwardOptimizer):
        return tuple(optimizer.inside.values())
    inside = getattr(optimizer, "optim", None)
    return (inside,) if isinstance(inside, torch.optim.Optimizer) else (optimizer,)


def _class(name: str) -> Any:
    known = all_names()
    if name in MODELLED:
        return MODELLED[name]
    if name == _OF_TRANSFORMERS:
        # Jobs that ask for it alone pay for the import.
        from transformers.optimization import Adafactor

        return Adafactor
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


def optimizer_maker(spec: schema.Job, world: World) -> OptimizerMaker:
    """How the job's optimizer is made."""
    if spec.parallel.dp_replicate.zero_redundancy_optimizer:
        return partial(_divide, group=world.group("dp_replicate"))
    return _one_for_each if spec.train.optimizer_in_backward else plain
