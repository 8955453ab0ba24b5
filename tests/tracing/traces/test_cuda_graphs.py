"""Compiled steps that are captured as CUDA graphs: what they allocate in private pools, and when."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from planner import paper  # before torch
from planner.allocator.replay import replay
from planner.events import TIMING, Alloc, EmptyCache, Event
from planner.paper import compiled

import torch  # isort: skip
from torch import nn  # isort: skip

_ROWS, _WIDTH = 64, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


@dataclass(frozen=True)
class Captured:
    """What the compiled forward of each iteration allocated, but for what timing takes, and all that happened."""

    forwards: list[list[Alloc]]
    events: list[Event]


@pytest.fixture(scope="module")
def captured() -> Captured:
    with paper.gpu("sm_90") as gpu, compiled.enable(gpu.recorder):
        model = Block().cuda()
        run = torch.compile(model, mode="reduce-overhead")
        forwards = []
        for _ in range(3):
            x = torch.randn(_ROWS, _WIDTH, device="cuda")
            before = len(gpu.recorder.events())
            output = run(x)
            allocated = [each for each in gpu.recorder.events()[before:] if isinstance(each, Alloc)]
            forwards.append([each for each in allocated if each.origin is None or each.origin.op != TIMING])
            output.sum().backward()
            model.zero_grad()
            del output, x
        return Captured(forwards, gpu.recorder.events())


def test_it_is_warmed_up_and_captured_in_a_private_pool_and_then_replayed(captured: Captured) -> None:
    warm, capture, replayed = captured.forwards
    outside = [each.requested_bytes for each in warm + capture if each.pool == 0]
    assert len({each.pool for each in warm + capture if each.pool != 0}) == 1
    assert outside == 4 * [8]  # seed and offset of the generator that each graph knows
    assert replayed == []


def test_a_captured_graph_copies_its_input_into_the_pool(captured: Captured) -> None:
    warm, capture, _ = captured.forwards
    sizes, of_input = [each.requested_bytes for each in capture], _ROWS * _WIDTH * 4
    assert sizes.count(of_input) == [each.requested_bytes for each in warm].count(of_input) + 1


def test_what_lies_in_the_pool_is_named_as_elsewhere(captured: Captured) -> None:
    found = {(each.origin.op, each.origin.module) for each in captured.forwards[1] if each.origin is not None}
    assert ("aten.addmm", "up") in found


def test_its_memory_stays_where_the_cache_is_emptied(captured: Captured) -> None:
    assert captured.events.count(EmptyCache()) >= 2  # before each capture
    without_pools = [
        Alloc(each.block, each.requested_bytes, each.stream) if isinstance(each, Alloc) else each
        for each in captured.events
    ]
    kept, given_back = (replay([*each, EmptyCache()]) for each in (captured.events, without_pools))
    assert kept.allocated_bytes[-1] == given_back.allocated_bytes[-1]
    assert kept.reserved_bytes[-1] > given_back.reserved_bytes[-1]


def test_gradients_in_a_pool_cannot_be_added_to_in_the_next_run() -> None:
    """Torch says so on a GPU too, where the memory has other values by then."""
    with paper.gpu("sm_90") as gpu, compiled.enable(gpu.recorder):
        model = Block().cuda()
        run = torch.compile(model, mode="reduce-overhead")

        def accumulate() -> None:
            for _ in range(2):
                run(torch.randn(_ROWS, _WIDTH, device="cuda")).sum().backward()

        with pytest.raises(RuntimeError, match="tensor output of CUDAGraphs that has been overwritten"):
            accumulate()
