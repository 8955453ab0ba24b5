"""Measured workspaces on the paper GPU: counted where they are known, at their first call and later ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from planner import paper  # before torch

# isort: split
import torch
from torch.nn.functional import conv2d

from planner.events import Alloc, Category, Role
from planner.hardware.workspaces import WorkspaceFact, WorkspaceRequest, WorkspaceTable
from planner.paper.device import Paper

GPU = "H200-SXM-141GB"


@contextmanager
def gpu(*facts: WorkspaceFact, keeps_requests: bool = False) -> Iterator[Paper]:
    known = WorkspaceTable(facts, GPU, "2.13")
    with paper.gpu("sm_90", known=known, keeps_requests=keeps_requests) as opened:
        yield opened


def convolve(batch: int = 2, **arguments: int) -> None:
    images = torch.empty(batch, 8, 16, 16, device="cuda", requires_grad=True)
    weight = torch.empty(8, 8, 3, 3, device="cuda", requires_grad=True)
    conv2d(images, weight, **arguments).sum().backward()


def asked(batch: int = 2) -> dict[str, WorkspaceRequest]:
    """What a convolution, forward and backward, asks for."""
    with gpu(keeps_requests=True) as opened:
        convolve(batch)
        return {each.request.kernel: each.request for each in opened.asked_workspaces()}


def workspaces(opened: Paper) -> list[int]:
    events = opened.recorder.events()
    blocks = {each.block for each in events if isinstance(each, Role) and each.category is Category.WORKSPACE}
    return [each.requested_bytes for each in events if isinstance(each, Alloc) and each.block in blocks]


def measured(request: WorkspaceRequest, size: int, first: int | None = None) -> WorkspaceFact:
    return WorkspaceFact(
        request=request, bytes=size, first_bytes=size if first is None else first, gpu=GPU, torch="2.13.0",
        driver="580.1", date="2026-11-20T10:00:00+00:00", command="planner gpu-truth",
    )  # fmt: skip


def test_a_convolution_asks_for_three_workspaces_by_all_that_the_library_hears() -> None:
    found = asked()

    assert list(found) == [
        "cuDNN convolution, forward",
        "cuDNN convolution, gradient of its input",
        "cuDNN convolution, gradient of its weight",
    ]
    assert found["cuDNN convolution, forward"] == WorkspaceRequest(
        kernel="cuDNN convolution, forward",
        dtype="float32",
        shapes=((2, 8, 16, 16), (8, 8, 3, 3)),
        options="padding=[0, 0] stride=[1, 1] dilation=[1, 1] groups=1 layout=channels_first benchmark=0 "
        "deterministic=0 tf32=1",
    )


def test_benchmarking_and_layout_make_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)

    assert "benchmark=1" in asked()["cuDNN convolution, forward"].options


def test_what_was_measured_is_counted_as_workspace_and_the_rest_is_named() -> None:
    forward = asked()["cuDNN convolution, forward"]
    with gpu(measured(forward, 1 << 20)) as opened:
        convolve()
        assert workspaces(opened) == [1 << 20]
        assert opened.unknown_workspaces() == (
            "cuDNN convolution, gradient of its input",
            "cuDNN convolution, gradient of its weight",
        )
        assert opened.counted_workspaces() == (
            f"Workspaces as measured ({GPU}, torch 2.13.0, driver 580.1, 2026-11-20): cuDNN convolution, forward.",
        )


def test_the_first_call_takes_what_the_first_call_took() -> None:
    forward = asked()["cuDNN convolution, forward"]
    with gpu(measured(forward, 1000, first=9000)) as opened:
        convolve()
        convolve()
        assert workspaces(opened) == [9000, 1000]


def test_a_workspace_of_nothing_is_known_too() -> None:
    with gpu(*(measured(each, 0) for each in asked().values())) as opened:
        convolve()
        assert (workspaces(opened), opened.unknown_workspaces()) == ([], ())


def test_between_two_measured_batches_it_is_interpolated_and_said() -> None:
    facts = [measured(asked(batch)["cuDNN convolution, forward"], 1 << 20 << batch) for batch in (1, 3)]
    with gpu(*facts) as opened:
        convolve(2)
        assert workspaces(opened) == [5 << 20]
        assert opened.workspace_margin_bytes() == 3 << 20
        assert opened.counted_workspaces()[1] == (
            "Interpolated between two measured sizes, of which the larger took up to 3.00 MiB more: "
            "cuDNN convolution, forward."
        )


@pytest.mark.parametrize(
    ("run", "kernels"),
    [
        (lambda: torch.fft.fft(torch.empty(4, 64, device="cuda", dtype=torch.complex64)), ["cuFFT"]),
        (lambda: torch.linalg.eig(torch.empty(8, 8, device="cuda")), ["cuSOLVER"]),
        (
            lambda: torch.nn.LSTM(4, 8, device="cuda")(torch.empty(5, 2, 4, device="cuda")),
            ["cuDNN recurrent network, forward", "cuDNN recurrent network, reserve"],
        ),
        (
            lambda: torch._grouped_mm(
                torch.empty(64, 32, device="cuda", dtype=torch.bfloat16),
                torch.empty(4, 32, 16, device="cuda", dtype=torch.bfloat16),
                torch.empty(4, device="cuda", dtype=torch.int32),
            ),
            ["grouped matrix product: its table of groups"],
        ),
    ],
    ids=["cuFFT", "cuSOLVER", "RNN", "grouped"],
)
def test_every_closed_library_is_asked(run: Callable[[], object], kernels: list[str]) -> None:
    with gpu(keeps_requests=True) as opened:
        kept = run()
        requests = [each.request for each in opened.asked_workspaces()]
        assert sorted({each.kernel for each in requests}) == kernels
        del kept
    with gpu(*(measured(each, 4096) for each in requests)) as opened:
        kept = run()
        assert 4096 in [each.requested_bytes for each in opened.recorder.events() if isinstance(each, Alloc)]
        assert opened.unknown_workspaces() == ()
        del kept
