"""What Inductor takes to time kernels where its cache is empty: a buffer, and copies of what a kernel changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from other_gpus import compiled_on

from planner import paper  # before torch
from planner.events import TIMING, Alloc
from planner.paper import compiled, library
from planner.paper.compiled.kernel_timing import untimed_kernel
from planner.upstream import torch_releases

import torch  # isort: skip
import torch._inductor.config  # isort: skip

MIB = 1 << 20
BUFFER_BYTES = {
    arch: of_cache if torch_releases.since(2, 7) else 256 * MIB
    for arch, of_cache in (("sm_90", 50 * MIB), ("sm_80", 40 * MIB))
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with paper.gpu("sm_90"):  # built where the user's cache is
        pass
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path))
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


def allocated(gpu: paper.Paper, run: Callable[[], object]) -> list[tuple[str, int]]:
    """Operators and sizes of what is allocated meanwhile."""
    before = len(gpu.recorder.events())
    run()
    events = gpu.recorder.events()[before:]
    return [
        (event.origin.op, event.requested_bytes)
        for event in events
        if isinstance(event, Alloc) and event.origin is not None
    ]


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
def test_a_first_launch_takes_a_buffer_of_the_gpus_cache_for_each_configuration_and_a_second_none(
    arch: str, tmp_path: Path
) -> None:
    given = "[torch.empty(1 << 20, device='cuda')]"
    first, second, _ = compiled_on(arch, tmp_path, "lambda x: x.sin() + 1", given, force_disable_caches=True)

    buffer = ["inductor.benchmark", [BUFFER_BYTES[arch] // 4], BUFFER_BYTES[arch]]
    assert first == [*second, *2 * [buffer]]
    assert [size for _, _, size in second] == [4 * MIB]


@torch._inductor.config.patch(force_disable_caches=False)
def test_with_a_cache_that_may_be_filled_all_that_is_timed_is_marked_and_told_to_nobody() -> None:
    def run(gpu: paper.Paper) -> list[tuple[str, int]]:
        a, b = (torch.empty(2047, 2047, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        return allocated(gpu, lambda: torch.compile(lambda a, b: a.sin() @ b)(a, b))

    with paper.gpu("sm_90") as gpu, compiled.enable(gpu.recorder):
        marked = run(gpu)
        told, _ = gpu.recorder.timed_events(0, 0)
    without_cache = torch._inductor.config.patch(force_disable_caches=True)
    with without_cache, paper.gpu("sm_90") as gpu, compiled.enable(gpu.recorder):
        sure = run(gpu)

    assert [size for _, size in marked] == [size for _, size in sure]
    timed = {operator for operator, _ in sure if operator.startswith("inductor.")}
    assert timed == {"inductor.benchmark", "inductor.pad_mm"}
    assert {operator for operator, _ in marked if operator.startswith("inductor.")} == {TIMING}
    untimed = [size for operator, size in marked if operator != TIMING]
    assert [event.requested_bytes for event in told if isinstance(event, Alloc)][2:] == untimed


def test_a_kernel_of_one_configuration_is_not_timed() -> None:
    with paper.gpu("sm_90") as gpu, compiled.enable(gpu.recorder):
        values = torch.empty(1 << 10, 1 << 14, device="cuda")
        run = torch.compile(lambda value: value.sum(dim=1))
        first = allocated(gpu, lambda: run(values))

    assert [operator for operator, _ in first if operator == "inductor.benchmark"] == []


def test_what_a_kernel_changes_is_copied_for_its_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    native = library.load()
    for owner in (torch.cuda, torch.accelerator):
        monkeypatch.setattr(owner, "memory_allocated", lambda *_: native.paper_allocated_bytes())
        monkeypatch.setattr(owner, "max_memory_allocated", lambda *_: native.paper_most_allocated_bytes())
    with paper.gpu("sm_90") as gpu, compiled.enable(gpu.recorder):
        room = torch.empty(64 * MIB, device="cuda")  # so that a copy raises no peak, else it goes to the host
        del room
        values = torch.empty(1 << 20, device="cuda")
        run = torch.compile(lambda value: value.add_(1))
        first, second = allocated(gpu, lambda: run(values)), allocated(gpu, lambda: run(values))

    # For both configurations, of what it reads and what it writes: before the buffer is there, and beside it.
    copies = 2 * [4 * MIB]
    assert [size for _, size in first] == 2 * [*copies, BUFFER_BYTES["sm_90"], *copies]
    assert second == []


def test_equal_kernels_of_two_graphs_are_timed_once() -> None:
    with paper.gpu("sm_90") as gpu, compiled.enable(gpu.recorder):
        values = torch.empty(1 << 20, device="cuda")
        one, other = (torch.compile(function) for function in (lambda value: value.sin() + 1, lambda x: x.sin() + 1))
        allocated(gpu, lambda: one(values))
        again = allocated(gpu, lambda: other(values))

    assert [size for operator, size in again if operator == "inductor.benchmark"] == []


def test_a_product_of_uneven_rows_is_timed_as_it_is_and_padded_before_the_code_runs() -> None:
    with paper.gpu("sm_90") as gpu, compiled.enable(gpu.recorder):
        a, b = (torch.empty(2047, 2047, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        run = torch.compile(lambda a, b: a @ b)
        first, second = allocated(gpu, lambda: run(a, b)), allocated(gpu, lambda: run(a, b))

    uneven, even, buffer = 2047 * 2047 * 2, 2048 * 2048 * 2, ("inductor.benchmark", BUFFER_BYTES["sm_90"])
    plain, padded = [("inductor.pad_mm", uneven)], 3 * [("inductor.pad_mm", even)]
    assert first[:12] == [*2 * plain, *plain, buffer, *plain, *padded, buffer, *padded]
    assert [event for event in second if event[0].startswith("inductor.")] == []


def test_a_kernel_with_helpers_is_timed_and_one_whose_configurations_cannot_be_read_is_named() -> None:
    source = """
@triton.jit
def helper(a, b): ...

@{heuristics}
@triton.jit
def kernel(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr): ...
"""
    device = "{'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90)}"
    pointwise = f"triton_heuristics.pointwise(size_hints={{'x': 1 << 20}}, filename=__file__, triton_meta={device})"
    with paper.gpu("sm_90") as gpu, compiled.enable(gpu.recorder) as account:
        timed = untimed_kernel("kernel", source.format(heuristics=pointwise))
        unread = untimed_kernel("kernel", source.format(heuristics="triton_heuristics.of_tomorrow()"))
        assumed = account.assumed()

    assert timed is not None
    assert unread is None
    assert [sentence for sentence in assumed if "configurations cannot be read (AttributeError" in sentence]
