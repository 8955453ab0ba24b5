"""When an iteration is over: streams that work beside each other, waits, and a host that may be too slow."""

from __future__ import annotations

import pytest

from planner.step_work import WHOLE_DEVICE, Kernel, Launch, LaunchKind, RepeatedLaunches, StepWork
from planner.timing.gpu_clock import HOST_NS, Prices, host_ns
from planner.timing.step_time import replay_step

LONG, SHORT, SENT, RECEIVED = range(4)
KERNELS = (
    Kernel("aten::mm", "bfloat16", 0, 0),
    Kernel("aten::add", "bfloat16", 0, 0),
    Kernel("nccl::allreduce", "bfloat16", 0, 0, (), (8, 1)),
    Kernel("nccl::recv", "bfloat16", 0, 0, (), (4, 1, 0)),
)
PRICES = Prices([10_000_000, 1_000_000, 4_000_000, 0], [host_ns(kernel) for kernel in KERNELS])
LANE = 7


def kernel(what: int, stream: int = 0) -> Launch:
    return Launch(LaunchKind.KERNEL, stream, what)


def record(event: int, stream: int = 0) -> Launch:
    return Launch(LaunchKind.RECORD, stream, event)


def wait(event: int, stream: int = 0) -> Launch:
    return Launch(LaunchKind.WAIT, stream, event)


def seconds(*launches: Launch) -> float:
    return replay_step(StepWork(KERNELS, launches), PRICES).step


@pytest.mark.parametrize("what", [LONG, SHORT, SENT])
@pytest.mark.parametrize("price", [1_000, 10_000, 10_000_000])
def test_launches_that_repeat_take_as_long_as_if_they_were_written_out(what: int, price: int) -> None:
    """Where the host decides, where the GPU does, and while the host is getting ahead."""
    prices = Prices([price] * len(KERNELS), PRICES.host)
    stretch = (record(1), wait(1, LANE), kernel(what, LANE), *[kernel(SHORT)] * 7, record(2, LANE), wait(2))
    begins, ends = (kernel(LONG),) * 3, (kernel(SENT, LANE),)
    written_out = StepWork(KERNELS, begins + 400 * stretch + ends + stretch * 3)
    repeats = ((3, 3 + len(stretch), 399), (4 + len(stretch), 4 + 2 * len(stretch), 2))
    repeated = StepWork(KERNELS, begins + stretch + ends + stretch, tuple(RepeatedLaunches(*each) for each in repeats))
    assert replay_step(repeated, prices) == replay_step(written_out, prices)


def test_kernels_of_one_stream_follow_one_another() -> None:
    assert seconds(kernel(LONG), kernel(SHORT), kernel(LONG)) == pytest.approx(0.021)


def test_a_collective_hides_behind_what_does_not_wait_for_it() -> None:
    issued = (record(1), wait(1, LANE), kernel(SENT, LANE), record(2, LANE))
    assert seconds(kernel(LONG), *issued, kernel(LONG), wait(2)) == pytest.approx(0.02)
    assert seconds(kernel(LONG), *issued, wait(2), kernel(LONG)) == pytest.approx(0.024)


def test_a_stream_that_waits_for_all_waits_for_collectives_that_nobody_waited_for() -> None:
    everything = Launch(LaunchKind.WAIT_ALL, 0, 0)
    assert seconds(record(1), wait(1, LANE), kernel(SENT, LANE), everything, kernel(LONG)) == pytest.approx(0.014)


def test_a_host_that_launches_more_slowly_than_the_gpu_computes_decides() -> None:
    tiny = StepWork(KERNELS, (kernel(SHORT),) * 100)
    fast = Prices([100] * len(KERNELS), PRICES.host)
    assert replay_step(tiny, fast).step == pytest.approx(100 * HOST_NS["eager"] / 1e9, rel=0.05)


def test_a_host_that_waits_for_the_device_does_not_run_ahead() -> None:
    behind = [kernel(LONG), *[kernel(SHORT)] * 10]
    waits = Launch(LaunchKind.HOST_WAIT, WHOLE_DEVICE, 0)
    assert seconds(*behind, waits) > seconds(*behind)


def test_a_stage_of_a_pipeline_waits_for_the_others() -> None:
    # Four stages, eight micro-batches from one neighbour: three eighths of the time it is idle.
    micro_batch = (kernel(RECEIVED), kernel(LONG))
    assert seconds(*micro_batch * 8) == pytest.approx(0.08 * (1 + 3 / 8), rel=0.01)
