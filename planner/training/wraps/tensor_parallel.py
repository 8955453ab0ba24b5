"""Tensor and sequence parallelism: DTensor's `parallelize_module`, by the model's own plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from planner.errors import SpecError
from planner.job import schema
from planner.training.models.build import tied_parameters
from planner.training.models.decoder import Decoder
from planner.upstream import torch_releases

# The built-in decoder is split as torchtitan splits Llama (torchtitan/models/llama3/infra/parallelize.py): queries,
# keys, values, gate and up column-wise, the projections back row-wise, the embedding by rows, the head by columns;
# under sequence parallelism norms and residuals hold their rank's tokens. A transformers model is split by
# transformers' own code (5.23, transformers/distributed/tensor_parallel.py) and plan (`base_model_tp_plan` and the
# head's `_tp_plan`).
#
# Parameters that no plan names are replicated as DTensors: foreach optimizers and clipping refuse a mix of tensors and
# DTensors (torch 2.13), and torchtitan (`NoParallel`) and accelerate do the same.
_PLACE = "parallel.tp"
_HEADS_FIRST = "replicated_with_grad_allreduce"
"""transformers' style of norms of single heads: their gradient is summed over the ranks."""
_LOGITS, _ROWS = "planner_logits", "planner_rowwise_to_tokens"
"""planner's own among transformers' styles."""


def split(model: nn.Module, spec: schema.Tp, mesh: DeviceMesh) -> None:
    """Split the model over `mesh`, which has one dim, in place; its parameters are DTensors afterwards.

    Raises SpecError if nothing says how.
    """
    if hasattr(model, "_resolve_parallel_plans"):
        _split_transformers(model, spec, mesh)
    elif isinstance(model, Decoder):
        _split_decoder(model, spec, mesh)
    else:
        raise SpecError(
            f"nothing says how {type(model).__name__} is split over {spec.degree} ranks",
            allowed="the built-in decoder, models of transformers with a plan",
            place=_PLACE,
        )
    _replicate_the_rest(model, mesh)


@contextmanager
def losses(spec: schema.Tp) -> Iterator[None]:
    """Inside, the cross entropy of logits that are split along the vocabulary is taken by all ranks together."""
    if not (spec.loss_parallel and spec.degree > 1):
        yield
        return
    with loss_parallel():
        try:
            yield
        except BaseException:
            # torch's own context does not clean up after an error (torch 2.13, tensor/parallel/loss.py).
            from torch.distributed.tensor.parallel import loss

            loss._disable_custom_loss_ops()
            loss._enable_custom_loss_ops()
            raise


def _split_decoder(model: Decoder, spec: schema.Tp, mesh: DeviceMesh) -> None:
    tokens = Shard(1) if spec.sequence_parallel else Replicate()
    norms = ("q_norm", "k_norm") if model.qk_norm else ()
    block: dict[str, ParallelStyle] = {
        **{f"attention.{name}": ColwiseParallel() for name in ("q", "k", "v")},
        **{f"attention.{name}": SequenceParallel(sequence_dim=2, use_local_output=True) for name in norms},
        "attention.o": RowwiseParallel(output_layouts=tokens),
        "ffn.gate": ColwiseParallel(),
        "ffn.up": ColwiseParallel(),
        "ffn.down": RowwiseParallel(output_layouts=tokens),
    }
    if spec.sequence_parallel:
        block |= {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
            ),
            "ffn_norm": SequenceParallel(),
            "ffn": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        }
    for layer in model.layers:
        parallelize_module(layer, mesh, block)
    logits = Shard(-1) if spec.loss_parallel else Replicate()
    ends: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens),
        "head": ColwiseParallel(input_layouts=tokens, output_layouts=logits, use_local_output=not spec.loss_parallel),
    }
    if spec.sequence_parallel:
        ends["norm"] = SequenceParallel()
    tied = getattr(model.head, "weight", None) is getattr(model.embedding, "weight", None)
    there = {name: style for name, style in ends.items() if isinstance(getattr(model, name, None), nn.Module)}
    parallelize_module(model, mesh, there)
    if tied and model.head is not None and model.embedding is not None:
        model.head.weight = model.embedding.weight


def _split_transformers(model: Any, spec: schema.Tp, mesh: DeviceMesh) -> None:
    torch_releases.require("tensor parallelism by transformers' plans", place="parallel.tp")
    from transformers.distributed import tensor_parallel
    from transformers.distributed.configuration_utils import DistributedConfig

    try:
        config = DistributedConfig(tp_size=spec.degree, tp_plan=None)
        plan, _, _ = model._resolve_parallel_plans(config)
    except ValueError as refusal:
        raise SpecError(f"transformers refuses the plan: {refusal}", place=_PLACE) from refusal
    _check_heads(model, plan, spec.degree)
    model._tp_size = spec.degree
    styles: Any = tensor_parallel.ALL_PARALLEL_STYLES  # type: ignore[attr-defined]
    if spec.loss_parallel:
        styles.register(_LOGITS, tensor_parallel.ColwiseParallel(use_local_output=False))
        plan |= _plan_logits(model, plan)
    if spec.sequence_parallel:
        plan = _split_rows_along_tokens(model, plan)
        styles.register(_ROWS, tensor_parallel.RowwiseParallel(output_layouts=Shard(1)))
    norms = [name for name, style in plan.items() if style == _HEADS_FIRST]
    tied = tied_parameters(model)
    # As transformers itself finds them when it splits, each with one of its own: it ties weights after they are loaded.
    for (first, first_name), *others in tied:
        parameter = first._parameters[first_name]
        assert parameter is not None
        for module, name in others:
            module._parameters[name] = nn.Parameter(torch.empty_like(parameter), parameter.requires_grad)
    try:
        tensor_parallel.apply_tensor_parallelism(model, mesh, {n: s for n, s in plan.items() if n not in norms})
    except ValueError as refusal:
        raise SpecError(f"transformers refuses the plan: {refusal}", place=_PLACE) from refusal
    for owners in tied:
        held = [module._parameters[name] for module, name in owners]
        chosen = next((parameter for parameter in held if isinstance(parameter, DTensor)), held[0])
        for module, name in owners:
            module._parameters[name] = chosen
    modules = dict(model.named_modules())
    for name in norms:
        if name in modules:
            _replicate(modules[name], mesh, Shard(2))
    if spec.sequence_parallel:
        for module in _move_tokens(model, mesh):
            _replicate(module, mesh, Shard(1))


def _plan_logits(model: Any, plan: Mapping[str, str]) -> dict[str, str]:
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    paths = [path for path, module in model.named_modules() if module is head and path in plan]
    if head is None or not paths:
        raise SpecError(
            f"the plan of {type(model).__name__} splits no head along the vocabulary",
            remedy="leave loss_parallel out",
            place="parallel.tp.loss_parallel",
        )
    return dict.fromkeys(paths, _LOGITS)


def _check_heads(model: Any, plan: Mapping[str, str], degree: int) -> None:
    """Attention reshapes into whole heads: a rank cannot hold a part of one."""
    if not any(path.endswith(("q_proj", "k_proj", "qkv_proj", "query_key_value")) for path in plan):
        return
    config = model.config.get_text_config()
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads % degree:
            raise SpecError(
                f"tp {degree} does not divide {name} ({heads}) of the config: each rank needs whole heads",
                allowed=f"a divisor of {heads}",
                place="parallel.tp.degree",
            )


# Between the blocks' attention and feed-forward each rank holds its part of the tokens, as torchtitan has it
# (torchtitan/models/llama3/infra/parallelize.py): norms and residuals see a part, what is split by columns sees all of
# them, and what is split by rows gives a part back.
_SEQUENCE_PARALLEL = "parallel.tp.sequence_parallel"
_LAYERS = "layers"


def _split_rows_along_tokens(model: nn.Module, plan: Mapping[str, str]) -> dict[str, str]:
    """The plan with every block's row-wise modules giving their rank's tokens instead of a sum for all.

    Raises SpecError for a model without blocks of attention and feed-forward that are split so.
    """
    own = {path: style for path, style in plan.items() if f".{_LAYERS}." in f".{path}"}
    others = sorted({*own.values()} - {"colwise", "rowwise", _HEADS_FIRST})
    if others or "rowwise" not in own.values():
        problem = f"styles {', '.join(others)}" if others else "no row-wise modules"
        raise SpecError(
            f"sequence parallelism of {type(model).__name__}: its plan has {problem} in the blocks",
            allowed="decoders whose blocks are split by columns and rows alone",
            place=_SEQUENCE_PARALLEL,
        )
    return {path: _ROWS if own.get(path) == "rowwise" else style for path, style in plan.items()}


def _move_tokens(model: Any, mesh: DeviceMesh) -> list[nn.Module]:
    """Scatters the tokens before the first block, gathers them before each split module and after the last norm.

    Returns the norms between, which work on a part of the tokens. Raises SpecError for a model of another build.
    """
    base = model.base_model
    layers, last = getattr(base, _LAYERS, None), getattr(base, "norm", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers) or not isinstance(last, nn.Module):
        raise SpecError(
            f"sequence parallelism of {type(model).__name__}: its base model has no `layers` and `norm`",
            allowed="transformers' decoders built as Llama is",
            place=_SEQUENCE_PARALLEL,
        )
    _move_before(layers[0], mesh, Replicate(), Shard(1), keep=False)
    norms = [last]
    for child in (child for layer in layers for child in layer.children()):
        if next(child.children(), None) is None:
            norms.append(child)
        else:
            _move_before(child, mesh, Shard(1), Replicate(), keep=True)
    last.register_forward_hook(
        lambda _module, _given, output: (
            _as_dtensor(output, mesh, Shard(1)).redistribute(placements=[Replicate()]).to_local()
        )
    )
    return norms


def _move_before(module: nn.Module, mesh: DeviceMesh, given: Placement, wanted: Placement, *, keep: bool) -> None:
    """The hidden states that the module takes are placed as wanted; `keep`: as a DTensor, whose gradient is summed once
    for all that use it."""

    def move(value: Tensor) -> Any:
        moved = _as_dtensor(value, mesh, given).redistribute(placements=[wanted])
        return moved if keep else moved.to_local()

    def hook(_module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        if "hidden_states" in named:
            return arguments, {**named, "hidden_states": move(named["hidden_states"])}
        return (move(arguments[0]), *arguments[1:]), named

    module.register_forward_pre_hook(hook, with_kwargs=True)


def _as_dtensor(value: Any, mesh: DeviceMesh, placement: Placement) -> Any:
    if isinstance(value, torch.Tensor) and not isinstance(value, DTensor):
        return DTensor.from_local(value, mesh, [placement], run_check=False)
    return value


def _replicate_the_rest(model: nn.Module, mesh: DeviceMesh) -> None:
    for path, module in model.named_modules():
        own = [
            name
            for name, parameter in module._parameters.items()
            if parameter is not None and not isinstance(parameter, DTensor)
        ]
        if not own:
            continue
        if next(module.children(), None) is not None:
            raise SpecError(
                f"{path or type(model).__name__} ({type(module).__name__}) has the parameter {own[0]} beside its "
                f"modules, and torch {torch.__version__} computes with a mix of tensors and DTensors nowhere",
                allowed="models whose parameters belong to modules without children (Linear, Embedding, norms)",
                place="parallel.tp",
            )
        _replicate(module, mesh, Replicate())


def _replicate(module: nn.Module, mesh: DeviceMesh, given: Placement) -> None:
    """Parameters replicated; what the module takes and returns are plain tensors, placed as `given` says inside."""

    def before(_module: nn.Module, arguments: Any, _mesh: Any) -> Any:
        return tuple(_as_dtensor(argument, mesh, given) for argument in arguments)

    def after(_module: nn.Module, output: Any, _mesh: Any) -> Any:
        return output.to_local() if isinstance(output, DTensor) else output

    distribute_module(module, mesh, None, before, after)
