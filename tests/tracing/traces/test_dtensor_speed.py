"""What is worked out once for all parameters, or only where it is asked for, is what torch works out for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import planner.paper  # noqa: F401 - before torch

import torch  # isort: skip
from torch import Tensor  # isort: skip
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # isort: skip
from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_param  # isort: skip
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard  # isort: skip
from torch.distributed.tensor._sharding_prop import ShardingPropagator  # isort: skip

from planner.job.layout import Mesh
from planner.job.schema import Cluster, Decoder, DpReplicate, DpShard, Gpu, Job, Model, Optimizer, Parallel, Tp, Train
from planner.tracing import job_program as tracing
from planner.training import absent_peers, dtensor_speed
from planner.upstream import torch_releases


@pytest.fixture
def world() -> Iterator[None]:
    with absent_peers.join(0, 8):
        yield


in_a_world = pytest.mark.usefixtures("world")


def mesh(first: str = "dp", *, across: int = 2) -> DeviceMesh:
    return init_device_mesh("cpu", (across, 8 // across), mesh_dim_names=(first, "tp"))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The meshes that torch has compared."""
    found: list[Any] = []
    real = DeviceMesh.__eq__

    def counted(one: DeviceMesh, other: object) -> bool:
        found.append((one, other))
        return real(one, other)

    monkeypatch.setattr(DeviceMesh, "__eq__", counted)
    return found


@in_a_world
def test_two_meshes_are_compared_once(compared: list[Any]) -> None:
    one, alike = mesh(), mesh()
    with dtensor_speed.cache_mesh_work():
        answers = [one == alike for _ in range(3)]

    assert answers == [True, True, True]
    assert len(compared) == 1


@in_a_world
@pytest.mark.parametrize("other", [{"first": "pp"}, {"across": 4}])
def test_meshes_that_differ_are_not_equal(other: dict[str, Any]) -> None:
    one, different = mesh(), mesh(**other)
    with dtensor_speed.cache_mesh_work():
        answers = [one == different for _ in range(2)]

    assert answers == [False, False]


@in_a_world
def test_a_mesh_is_still_found_in_a_dictionary() -> None:
    with dtensor_speed.cache_mesh_work():
        assert {mesh(): "here"}[mesh()] == "here"


@in_a_world
def test_afterwards_torch_compares_again(compared: list[Any]) -> None:
    one, alike = mesh(), mesh()
    with dtensor_speed.cache_mesh_work():
        assert one == alike
    assert one == alike

    assert len(compared) == 2


LAYERS = 4


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


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride() if tensor.numel() else None, tensor.storage_offset(), tensor.dtype


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 7, 8, 9, 64])
@pytest.mark.parametrize("number", [1, 2, 3, 8, 63, 64, 100])
def test_every_chunk_is_torchs(rows: int, number: int) -> None:
    tensor = torch.arange(rows * 3.0).view(rows, 3)
    expected = _fsdp_common._chunk_with_empty(tensor, number, dim=0)
    found = dtensor_speed.ShardChunks(tensor, number, 0)

    assert len(found) == len(expected) == number
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]
    assert [each.shape for each in found] == [each.shape for each in expected]
    assert [each.numel() and layout(each) for each in found[:]] == [each.numel() and layout(each) for each in expected]


def test_fully_shard_takes_them_inside_and_its_own_afterwards() -> None:
    its_own = _fsdp_param._chunk_with_empty
    with dtensor_speed.make_chunks_lazily():
        assert isinstance(_fsdp_param._chunk_with_empty(torch.ones(4), 131_072, dim=0), dtensor_speed.ShardChunks)
    assert _fsdp_param._chunk_with_empty is its_own
