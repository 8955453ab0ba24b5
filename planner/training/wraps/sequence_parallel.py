"""Sequence parallelism for transformers' decoders, which transformers 5.23 does not have itself.

Between the blocks' attention and feed-forward each rank holds its part of the tokens, as torchtitan has it
(torchtitan/models/llama3/infra/parallelize.py): norms and residuals see a part, what is split by columns sees all of
them, and what is split by rows gives a part back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from planner.errors import SpecError

_PLACE = "parallel.tp.sequence_parallel"
_ROWS = "planner_rowwise_to_tokens"
_LAYERS = "layers"


def split_rows_along_tokens(model: nn.Module, plan: Mapping[str, str]) -> dict[str, str]:
    """The plan with every block's row-wise modules giving their rank's tokens instead of a sum for all.

    Raises SpecError for a model without blocks of attention and feed-forward that are split so.
    """
    from transformers.distributed import tensor_parallel

    own = {path: style for path, style in plan.items() if f".{_LAYERS}." in f".{path}"}
    others = sorted({*own.values()} - {"colwise", "rowwise", "replicated_with_grad_allreduce"})
    if others or "rowwise" not in own.values():
        found = f"styles {', '.join(others)}" if others else "no row-wise modules"
        raise SpecError(
            f"sequence parallelism of {type(model).__name__}: its plan has {found} in the blocks",
            allowed="decoders whose blocks are split by columns and rows alone",
            place=_PLACE,
        )
    styles: Any = tensor_parallel.ALL_PARALLEL_STYLES  # type: ignore[attr-defined]
    styles.register(_ROWS, tensor_parallel.RowwiseParallel(output_layouts=Shard(1)))
    return {path: _ROWS if own.get(path) == "rowwise" else style for path, style in plan.items()}


def norms_and_hooks(model: Any, mesh: DeviceMesh) -> list[nn.Module]:
    """Scatters the tokens before the first block, gathers them before each split module and after the last norm.

    Returns the norms between, which work on a part of the tokens. Raises SpecError for a model of another build.
    """
    base = model.base_model
    blocks, last = getattr(base, _LAYERS, None), getattr(base, "norm", None)
    if not isinstance(blocks, nn.ModuleList) or not len(blocks) or not isinstance(last, nn.Module):
        raise SpecError(
            f"sequence parallelism of {type(model).__name__}: its base model has no `layers` and `norm`",
            allowed="transformers' decoders built as Llama is",
            place=_PLACE,
        )
    _before(blocks[0], mesh, Replicate(), Shard(1), keep=False)
    for block in blocks:
        for child in block.children():
            if next(child.children(), None) is not None:
                _before(child, mesh, Shard(1), Replicate(), keep=True)
    last.register_forward_hook(lambda _module, _given, out: _moved(out, mesh, Shard(1), Replicate()).to_local())
    return [last, *(child for block in blocks for child in block.children() if next(child.children(), None) is None)]


def _before(module: nn.Module, mesh: DeviceMesh, given: Placement, wanted: Placement, *, keep: bool) -> None:
    """The hidden states that the module takes are placed as wanted; `keep`: as a DTensor, whose gradient is summed once
    for all that use it."""

    def move(value: Tensor) -> Tensor:
        moved = _moved(value, mesh, given, wanted)
        return moved if keep else moved.to_local()

    def hook(_module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        if "hidden_states" in named:
            return arguments, {**named, "hidden_states": move(named["hidden_states"])}
        return (move(arguments[0]), *arguments[1:]), named

    module.register_forward_pre_hook(hook, with_kwargs=True)


def _moved(value: Tensor, mesh: DeviceMesh, given: Placement, wanted: Placement) -> DTensor:
    placed = value if isinstance(value, DTensor) else DTensor.from_local(value, mesh, [given], run_check=False)
    return placed.redistribute(placements=[wanted])
