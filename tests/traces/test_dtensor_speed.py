"""What is worked out once for all parameters is what torch works out for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import planner.paper  # noqa: F401 - before torch

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # isort: skip

from planner.training import absent_peers, dtensor_speed


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    with absent_peers.join(0, 8):
        yield


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


def test_two_meshes_are_compared_once(compared: list[Any]) -> None:
    one, alike = mesh(), mesh()
    with dtensor_speed.cache_mesh_work():
        answers = [one == alike for _ in range(3)]

    assert answers == [True, True, True]
    assert len(compared) == 1


@pytest.mark.parametrize("other", [{"first": "pp"}, {"across": 4}])
def test_meshes_that_differ_are_not_equal(other: dict[str, Any]) -> None:
    one, different = mesh(), mesh(**other)
    with dtensor_speed.cache_mesh_work():
        answers = [one == different for _ in range(2)]

    assert answers == [False, False]


def test_a_mesh_equals_nothing_else() -> None:
    with dtensor_speed.cache_mesh_work():
        assert mesh() != "mesh"


def test_a_mesh_is_still_found_in_a_dictionary() -> None:
    with dtensor_speed.cache_mesh_work():
        assert {mesh(): "here"}[mesh()] == "here"


def test_afterwards_torch_compares_again(compared: list[Any]) -> None:
    one, alike = mesh(), mesh()
    with dtensor_speed.cache_mesh_work():
        assert one == alike
    assert one == alike

    assert len(compared) == 2
