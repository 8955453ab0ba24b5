"""The chunks of a parameter that are made when they are asked for are those that fully_shard makes."""

from __future__ import annotations

from typing import Any

import pytest

import planner.paper  # noqa: F401 - before torch

import torch  # isort: skip
from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_param  # isort: skip

from planner.training import dtensor_speed


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


def test_another_dim_is_cut_as_well() -> None:
    tensor = torch.arange(24.0).view(3, 8)

    assert [each.tolist() for each in dtensor_speed.ShardChunks(tensor, 4, 1)] == [
        each.tolist() for each in _fsdp_common._chunk_with_empty(tensor, 4, dim=1)
    ]


def test_there_is_none_beyond_the_last() -> None:
    with pytest.raises(IndexError):
        dtensor_speed.ShardChunks(torch.ones(4), 2, 0)[2]


def test_fully_shard_takes_them_inside_and_its_own_afterwards() -> None:
    its_own = _fsdp_param._chunk_with_empty
    with dtensor_speed.make_chunks_lazily():
        assert isinstance(_fsdp_param._chunk_with_empty(torch.ones(4), 131_072, dim=0), dtensor_speed.ShardChunks)
    assert _fsdp_param._chunk_with_empty is its_own
