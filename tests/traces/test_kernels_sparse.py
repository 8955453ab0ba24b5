"""What sparse tensors take: two tensors each, and what a sum with a dense one and its gradient want beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_runs import assert_exact, both_ways
from plain_cases import job
from torch import Tensor

from planner import paper
from planner.events import Category
from planner.job.schema import Input, Model

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")
COUNT, ROWS, COLUMNS = 500, 64, 32


def parts(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    places = torch.empty(2, COUNT, dtype=torch.int64, device="cuda")
    return torch.empty(ROWS, COLUMNS, dtype=dtype, device="cuda"), places, torch.empty(COUNT, device="cuda")


def add(dense: Tensor, places: Tensor, values: Tensor) -> Tensor:
    dense += torch.sparse_coo_tensor(places, values, dense.shape)
    return dense


def test_places_and_values_are_the_sparse_tensor(taken: Any) -> None:
    found = taken(lambda: parts(torch.float32)[1:], lambda *given: torch.sparse_coo_tensor(*given, (ROWS, COLUMNS)))

    assert (found.kept_bytes, found.temporary_bytes) == ([], [])


def test_a_sparse_tensor_can_be_told_of_and_has_no_block_of_its_own() -> None:
    """As a gradient of an embedding is."""
    with paper.gpu("sm_90") as gpu:
        _, places, values = parts(torch.float32)
        sparse = torch.sparse_coo_tensor(places, values, (ROWS, COLUMNS))
        gpu.recorder.assign(sparse, Category.GRADIENT)

        assert gpu.recorder.block_of(sparse) is None
        assert gpu.recorder.block_of(values) is not None


def test_a_sum_with_a_dense_tensor_counts_the_places_in_one_dim(taken: Any) -> None:
    found = taken(lambda: parts(torch.float32), add)

    assert (found.kept_bytes, found.temporary_bytes) == ([], [COUNT * 8])


def test_a_sum_of_two_dtypes_is_made_beside_the_dense_tensor(taken: Any) -> None:
    found = taken(lambda: parts(torch.bfloat16), add)

    assert (found.kept_bytes, found.temporary_bytes) == ([], [ROWS * COLUMNS * 4, ROWS * COLUMNS * 4, COUNT * 8])


@pytest.mark.parametrize("combine", [torch.add, torch.mul])
def test_two_sparse_tensors_are_refused_by_name(taken: Any, combine: Any) -> None:
    def run(dense: Tensor, places: Tensor, values: Tensor) -> Tensor:
        one = torch.sparse_coo_tensor(places, values, dense.shape)
        combined: Tensor = combine(one, one)
        return combined

    with pytest.raises(RuntimeError, match="of two sparse tensors on paper"):
        taken(lambda: parts(torch.float32), run)


def test_weights_that_are_changed_at_places_train_as_on_a_cpu(tmp_path: Path) -> None:
    model = Model(factory="sparse_models:SparselyAdapted", factory_path=str(Path(__file__).parents[1] / "programs"))
    rows = {"input": Input(shape=(512,)), "labels": Input(shape=(), dtype="int64", maximum=10)}
    adapted = job("sparse", model, batch=256, inputs=rows)

    paper, real = both_ways(tmp_path, [([adapted], 1)], "sparse")["sparse", 0]

    assert_exact(paper, real)
