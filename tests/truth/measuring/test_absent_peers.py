"""One process as one rank of any world."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FakeProcessGroup  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from planner.errors import MeasureError, TraceError
from planner.training import absent_peers


def test_the_world_is_as_large_as_said_and_gone_afterwards() -> None:
    with absent_peers.join(5, 4096):
        assert (dist.get_rank(), dist.get_world_size()) == (5, 4096)
    assert not dist.is_initialized()


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(MeasureError, match="no rank 4 in a world of 4"), absent_peers.join(4, 4):
        pass


def test_a_process_is_in_one_world_at_a_time() -> None:
    with absent_peers.join(0, 2), pytest.raises(MeasureError, match="joined a world already"), absent_peers.join(0, 2):
        pass
    assert not dist.is_initialized()


def test_collectives_are_done_at_once_with_what_this_rank_has() -> None:
    with absent_peers.join(1, 4):
        one = torch.tensor([3.0])
        dist.all_reduce(one)
        gathered = [torch.zeros(1) for _ in range(4)]
        dist.all_gather(gathered, one)
        whole = torch.zeros(4)
        getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, one)
        shard = torch.zeros(1)
        getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(shard, torch.arange(4.0))
        dist.broadcast(one, src=0)
        dist.barrier()
        work = dist.all_reduce(one, async_op=True)
        assert work.get_future().wait()[0].item() == 3.0
    assert torch.cat(gathered).tolist() == whole.tolist() == [3.0] * 4
    assert shard.item() == 1.0


@pytest.mark.parametrize("whole_shape", [(24,), (12, 2), (6, 2, 2)])
def test_one_tensor_is_gathered_and_scattered_as_torchs_fake_group_does(whole_shape: tuple[int, ...]) -> None:
    size, rank = 6, 4
    whole = torch.arange(24.0).view(whole_shape)
    part = whole.chunk(size)[rank].clone()
    torchs, peers = FakeProcessGroup._create_internal(rank, size), absent_peers.AbsentPeers(rank, size)
    gathered, scattered = torch.zeros(whole_shape), torch.zeros_like(part)
    expected_gathered, expected_scattered = torch.zeros(whole_shape), torch.zeros_like(part)
    torchs._allgather_base(expected_gathered, part)
    torchs._reduce_scatter_base(expected_scattered, whole)
    peers._allgather_base(gathered, part)  # type: ignore[attr-defined]
    peers._reduce_scatter_base(scattered, whole)  # type: ignore[attr-defined]

    assert torch.equal(gathered, expected_gathered)
    assert torch.equal(scattered, expected_scattered)


def test_rows_go_to_all_in_parts_that_sum_to_them_and_in_no_others() -> None:
    with absent_peers.join(0, 2):
        given, output = torch.ones(5), torch.zeros(4)
        dist.all_to_all_single(output, given, np.array([1, 3]), np.array([2, 3]))
        with pytest.raises(TraceError, match="splits 5 rows in parts of 4 in all"):
            dist.all_to_all_single(output, given, np.array([1, 3]), np.array([2, 2]))


def test_a_rank_that_gives_its_own_part_of_the_output_fills_the_others() -> None:
    with absent_peers.join(2, 4):
        whole = torch.arange(8.0)
        getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, whole[4:6])
    assert whole.tolist() == [4.0, 5.0] * 4


@pytest.mark.parametrize("view", [False, True])
def test_the_reducer_builds_and_rebuilds_its_buckets(view: bool) -> None:
    with absent_peers.join(0, 8):
        net = DistributedDataParallel(
            nn.Sequential(*(nn.Linear(128, 128) for _ in range(4))), bucket_cap_mb=0.1, gradient_as_bucket_view=view
        )
        for _ in range(3):
            net(torch.ones(2, 128)).sum().backward()
        said: dict[str, Any] = net._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    assert said["world_size"] == 8
    assert said["has_rebuilt_buckets"] == 1
    assert said["rebuilt_bucket_sizes"] == "132096, 132096"


def test_no_scaler_skips_a_step_that_overflowed() -> None:
    weight = nn.Parameter(torch.ones(2))

    def step() -> dict[str, Any]:
        optimizer = torch.optim.Adam([weight])
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(weight.sum() * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
        return dict(optimizer.state)

    assert step() == {}
    with absent_peers.take_every_step():
        assert list(step()) == [weight]
