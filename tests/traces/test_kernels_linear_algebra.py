"""Decompositions beside their results. Source: torch 2.13, aten/src/ATen/native/BatchLinearAlgebra.cpp and
cuda/linalg/BatchLinearAlgebraLib.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import linalg

MATRIX, FLAGS = 64 * 48 * 4, [4, 1]
"""Bytes of a matrix; of a flag for each matrix, and of one for all."""


@pytest.mark.parametrize(
    ("run", "temporary_bytes"),
    [
        (lambda x: linalg.svd(x, full_matrices=False), [4, MATRIX, 1]),
        (linalg.svdvals, [4, MATRIX, 64 * 48 * 4, 48 * 48 * 4, 1]),
        (linalg.qr, [48 * 4]),
        (lambda x: linalg.qr(x, "r").R, [48 * 4, MATRIX]),
    ],
    ids=["svd", "svdvals", "qr", "r_alone"],
)
def test_a_matrix_is_copied_before_it_is_overwritten_unless_a_result_has_its_shape(
    run: Callable[[torch.Tensor], Any], temporary_bytes: list[int], taken: Any
) -> None:
    found = taken(lambda: [torch.empty(64, 48, device="cuda")], run)

    assert found.temporary_bytes == temporary_bytes
    assert found.unknown_workspaces == ("cuSOLVER",)


@pytest.mark.parametrize(
    ("run", "temporary_bytes"),
    [
        (linalg.eigh, FLAGS),
        (linalg.cholesky, FLAGS),
        (linalg.inv, [4, 48 * 48 * 4, 48 * 4, 1]),
    ],
    ids=["eigh", "cholesky", "inv"],
)
def test_a_square_matrix_is_decomposed_in_a_result_or_beside_it(
    run: Callable[[torch.Tensor], Any], temporary_bytes: list[int], taken: Any
) -> None:
    found = taken(lambda: [torch.empty(48, 48, device="cuda")], run)

    assert found.temporary_bytes == temporary_bytes
    assert found.unknown_workspaces == ("cuSOLVER",)
