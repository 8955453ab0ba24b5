"""What Fourier transforms take on a GPU: results, copies, and buffers between parts of many dims."""

from __future__ import annotations

from typing import Any

import torch

from planner import paper


def complex_numbers(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.complex64, device="cuda")


def test_a_transform_of_two_dims_takes_its_result_alone(taken: Any) -> None:
    found = taken(lambda: (complex_numbers(64, 64),), torch.fft.fft2)

    assert (found.kept_bytes, found.temporary_bytes) == ([64 * 64 * 8], [])


def test_four_dims_go_through_a_second_buffer(taken: Any) -> None:
    found = taken(lambda: (complex_numbers(4, 4, 4, 4),), torch.fft.fftn)

    assert (found.kept_bytes, found.temporary_bytes) == ([256 * 8], [256 * 8])


def test_the_way_back_to_real_numbers_copies_its_input(taken: Any) -> None:
    found = taken(lambda: (complex_numbers(8, 5),), torch.fft.irfft)

    assert (found.kept_bytes, found.temporary_bytes) == ([64 * 4], [40 * 8])


def test_the_work_area_of_cufft_is_named() -> None:
    with paper.gpu("sm_90") as gpu:
        torch.fft.fft(torch.empty(8, device="cuda"))

        assert gpu.unknown_workspaces() == ("cuFFT",)
