"""Sorts and running sums. Source: torch 2.13, aten/src/ATen/native/cuda/Sort.cpp, SortStable.cu, ScanUtils.cuh."""

from __future__ import annotations

from typing import Any

import torch

from planner.paper.kernels.sorting import radix_sort_bytes


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return lambda: (torch.empty(shape, dtype=dtype, device="cuda"),)


def test_short_rows_are_sorted_in_place_with_one_row_of_places(taken: Any) -> None:
    found = taken(random(64, 1000), lambda x: x.sort())

    assert found.kept == [((64, 1000), "float32"), ((64, 1000), "int64")]
    assert found.temporary == [((1000,), "int64")]


def test_one_long_row_takes_its_places_and_cubs_copies(taken: Any) -> None:
    found = taken(random(100_000, dtype=torch.int64), lambda x: x.sort())

    assert found.temporary_bytes == [100_000 * 8, radix_sort_bytes(100_000, 8, 8, 64)]


def test_rows_that_lie_across_are_first_laid_behind_one_another(taken: Any) -> None:
    found = taken(random(5000, 200), lambda x: x.sort(dim=0))

    assert found.temporary[:3] == [((200, 5000), "float32"), ((200, 5000), "float32"), ((200, 5000), "int64")]


def test_an_argsort_gives_the_values_back(taken: Any) -> None:
    found = taken(random(64), lambda x: x.argsort())

    assert found.kept == [((64,), "int64")]


def test_a_running_sum_of_a_mask_is_one_of_its_int64_copy(taken: Any) -> None:
    found = taken(random(8, 32, dtype=torch.bool), lambda mask: mask.cumsum(-1))

    assert found.kept == [((8, 32), "int64")]
    assert found.temporary == [((8, 32), "int64")]


def test_a_running_sum_over_one_row_is_cubs(taken: Any) -> None:
    assert len(taken(random(4096), lambda x: x.cumsum(0)).temporary) == 1
    assert taken(random(2, 4096), lambda x: x.cumsum(1)).temporary == []
