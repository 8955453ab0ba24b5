"""Operators on lists of DTensors are laid out as torch lays them out, though one tensor of each kind is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import planner.paper  # noqa: F401 - before torch

import torch  # isort: skip
from torch import Tensor  # isort: skip
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # isort: skip
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard  # isort: skip
from torch.distributed.tensor._sharding_prop import ShardingPropagator  # isort: skip

from planner.job.layout import Mesh
from planner.job.schema import Cluster, Decoder, DpReplicate, DpShard, Gpu, Job, Model, Optimizer, Parallel, Tp, Train
from planner.tracing.spec import step_trace as tracing
from planner.training import absent_peers, dtensor_speed
from planner.upstream import torch_releases

LAYERS = 4

Lists = Callable[[DeviceMesh], list[list[DTensor]]]
"""For each kind of tensor one for each layer, kind by kind."""


def parameters(mesh: DeviceMesh) -> list[list[DTensor]]:
    """As fully_shard has them: matrices and vectors, all split along their first dim."""
    return [repeated(mesh, shape, [Shard(0)]) for shape in ((64, 16), (16, 16), (16,))]


def uneven(mesh: DeviceMesh) -> list[list[DTensor]]:
    return [repeated(mesh, (17, 4), [Shard(0)]), repeated(mesh, (17, 4), [Shard(1)])]


def partly_reduced(mesh: DeviceMesh) -> list[list[DTensor]]:
    return [repeated(mesh, (8, 8), [Partial()]), repeated(mesh, (8, 8), [Replicate()])]


def repeated(mesh: DeviceMesh, shape: tuple[int, ...], placements: Sequence[Placement]) -> list[DTensor]:
    return [DTensor.from_local(torch.ones(shape), mesh, placements, run_check=False) for _ in range(LAYERS)]


def adamw(tensors: list[DTensor]) -> None:
    state = [[each.clone() for each in tensors] for _ in range(3)]
    steps = [torch.ones(()) for _ in tensors]
    torch._fused_adamw_(
        tensors, *state, [], steps, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False,
        maximize=False,
    )  # fmt: skip


OPERATORS: dict[str, Callable[[list[DTensor]], Any]] = {
    "norm": lambda tensors: torch._foreach_norm(tensors, 2.0),
    "sum": lambda tensors: torch._foreach_add(tensors, tensors, alpha=2),
    "sum with itself reversed": lambda tensors: torch._foreach_mul(tensors, tensors[::-1]),
    "multiple": lambda tensors: torch._foreach_mul(tensors, 2.0),
    "multiples": lambda tensors: torch._foreach_mul(tensors, [float(number) for number in range(len(tensors))]),
    "root": torch._foreach_sqrt,
    "fused AdamW": adamw,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each operator that torch works out, how long its first list is."""
    found: list[int] = []
    real = ShardingPropagator.propagate_op_sharding_non_cached

    def counted(self: ShardingPropagator, schema: Any) -> Any:
        found.extend(len(each) for each in schema.args_schema[:1] if isinstance(each, list | tuple))
        return real(self, schema)

    monkeypatch.setattr(ShardingPropagator, "propagate_op_sharding_non_cached", counted)
    absent_peers.forget()  # torch up to 2.9 keeps the method that it had
    return found


@pytest.fixture(params=[parameters, uneven, partly_reduced])
def lists(request: pytest.FixtureRequest) -> Callable[[], list[DTensor]]:
    """Layer by layer; made anew each time, in a world of which DTensor knows nothing yet."""

    def made() -> list[DTensor]:
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        return [each for layer in zip(*request.param(mesh), strict=True) for each in layer]

    return made


@pytest.mark.parametrize("operator", OPERATORS)
def test_results_are_laid_out_as_torch_lays_them_out(operator: str, lists: Callable[[], list[DTensor]]) -> None:
    with absent_peers.join(0, 4):
        expected = outcome(operator, lists())
    with absent_peers.join(0, 4), dtensor_speed.cache_mesh_work():
        found = outcome(operator, lists())

    assert found == expected


def outcome(operator: str, tensors: list[DTensor]) -> Any:
    """What the operator gives and leaves of its arguments; or how torch refuses it."""
    try:
        given = OPERATORS[operator](tensors)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return [looks(each) for each in (*(given or ()), *tensors)]


def looks(tensor: Tensor) -> tuple[object, ...]:
    assert isinstance(tensor, DTensor)
    local = tensor.to_local()
    return tensor.placements, tensor.shape, tensor.stride(), local.shape, local.stride(), local.dtype


@pytest.mark.skipif(not torch_releases.since(2, 10), reason="before torch 2.10 every tensor is asked for")
@pytest.mark.parametrize("operator", ["norm", "sum", "multiple", "fused AdamW"])
def test_one_tensor_of_each_kind_is_asked_for(operator: str, asked: list[int]) -> None:
    with absent_peers.join(0, 4), dtensor_speed.cache_mesh_work():
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        OPERATORS[operator]([each for kind in parameters(mesh) for each in kind])

    assert asked == [3]


def test_a_list_with_numbers_beside_it_is_asked_for_as_a_whole(asked: list[int]) -> None:
    with absent_peers.join(0, 4), dtensor_speed.cache_mesh_work():
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        OPERATORS["multiples"]([each for kind in parameters(mesh) for each in kind])

    assert asked == [3 * LAYERS]


@pytest.mark.parametrize(
    ("layers", "parallel", "variant"),
    [
        (4, Parallel(dp_shard=DpShard(degree=2), tp=Tp(degree=2)), "fused"),
        (6, Parallel(dp_shard=DpShard(degree=2), dp_replicate=DpReplicate(degree=2)), "foreach"),
        (12, Parallel(dp_shard=DpShard(degree=2)), "foreach"),
    ],
    ids=["sharded and split, fused", "hybrid, foreach", "sharded, foreach"],
)
def test_a_trace_has_the_events_of_torch_s_own_way(
    layers: int, parallel: Parallel, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(
        model=Model(decoder=Decoder(layers=layers, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=300)),
        train=Train(
            micro_batch_size=1, sequence_length=32, gradient_clipping=1.0,
            optimizer=Optimizer(name="AdamW", arguments={variant: True}),
        ),
        parallel=parallel,
        cluster=Cluster(gpus_per_node=Mesh.of(parallel).world_size, gpu=Gpu(total_bytes=80 << 30, arch="sm_90")),
    )  # fmt: skip
    found = tracing.trace(job).events
    monkeypatch.setattr(dtensor_speed, "propagate_by_groups", lambda real: real)

    assert found == tracing.trace(job).events
