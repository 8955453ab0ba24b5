"""What CUDA's kernels take besides their results: reductions, sorts, the backward of an embedding, gemms.

The sizes in tests/data/recorded_programs.json were recorded on real GPUs; the others follow from torch's sources, named
where the kernel is (planner/paper).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import planner.paper as paper
from planner.events import Alloc, Free
from planner.upstream import torch_releases

RECORDED = json.loads((Path(__file__).parents[1] / "data/recorded_programs.json").read_text())
# Any GPU that is neither Hopper nor Blackwell, as the recorded ones were unless a fact says otherwise.
TARGET = "sm_86"


def temporaries(kernel: Callable[[], Any], target: str = TARGET) -> list[int]:
    """Bytes of what a kernel allocated and gave back before it ended, in order."""
    with paper.gpu(target) as gpu:
        kept = kernel()
        events = gpu.recorder.events()
    del kept
    freed = {e.block for e in events if isinstance(e, Free)}
    return [e.requested_bytes for e in events if isinstance(e, Alloc) and e.block in freed]


def dense(shape: list[int], strides: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


@pytest.mark.parametrize("fact", RECORDED["reductions"], ids=lambda fact: f"{fact['what']}: {fact['bytes']}")
def test_a_reduction_takes_the_staging_buffer_and_semaphores_that_were_recorded(fact: dict[str, Any]) -> None:
    def reduce() -> Any:
        x = dense(fact["shape"], fact["strides"])
        if fact["operator"] == "max":
            return x, torch.max(x, dim=fact["dims"][0], keepdim=True)
        return x, torch.sum(x, dim=fact["dims"])

    target = "sm_90" if fact["from"].startswith("lm32") else TARGET
    assert temporaries(reduce, target) == fact["bytes"]


def test_a_reduction_on_the_cpu_takes_nothing() -> None:
    assert temporaries(lambda: torch.sum(torch.empty(8192, 512, device="cuda"), dim=0), "cpu") == [8192 * 512 * 4]


def test_a_sum_of_a_mask_is_a_sum_of_its_int64_copy() -> None:
    def count() -> Any:
        mask = torch.empty(64, 100, dtype=torch.bool, device="cuda")
        return mask, mask.sum(dim=1)

    assert temporaries(count) == [64 * 100 * 8]


@pytest.mark.parametrize("fact", RECORDED["sorts"], ids=lambda fact: f"{fact['places']} places: {fact['bytes']} bytes")
def test_the_backward_of_indexing_sorts_the_places_in_the_scratch_that_was_recorded(fact: dict[str, Any]) -> None:
    places, words = fact["places"], fact["places"] * 8

    def index_put() -> Any:
        weight = torch.empty(10_000, 512, device="cuda")
        index = torch.empty(places, dtype=torch.int64, device="cuda")
        values = torch.empty(places, 512, device="cuda")
        return weight.index_put_((index,), values, accumulate=True), index, values

    assert temporaries(index_put) == [words, words, words, words, words, fact["bytes"]]


def test_places_on_the_host_are_copied_to_the_device_and_the_copy_goes_with_the_kernel() -> None:
    """Recorded with lm32-fullstep-ctx128: `logits[torch.arange(512), targets]`, forward and backward."""
    rows = torch.arange(512)

    def index() -> Any:
        logits, targets = torch.empty(512, 100, device="cuda"), torch.empty(512, dtype=torch.int64, device="cuda")
        return logits, targets, logits[rows, targets]

    def index_put() -> Any:
        zeros, targets = torch.empty(512, 100, device="cuda"), torch.empty(512, dtype=torch.int64, device="cuda")
        gradient = torch.empty(512, device="cuda")
        return zeros.index_put_((rows, targets), gradient, accumulate=True), targets, gradient

    assert temporaries(index) == [4096]
    assert temporaries(index_put) == [4096, 4096, 4096, 4096, 4096, 4096, 1]


def test_a_larger_tile_on_hopper_makes_the_scratch_of_a_sort_smaller() -> None:
    def index_put() -> Any:
        weight, index = torch.empty(10_000, 8, device="cuda"), torch.empty(4096, dtype=torch.int64, device="cuda")
        values = torch.empty(4096, 8, device="cuda")
        return weight.index_put_((index,), values, accumulate=True), index, values

    assert max(temporaries(index_put, "sm_80")) - max(temporaries(index_put, "sm_90")) == 256 * 4


def embedding_backward(indices: int, rows: int, dtype: torch.dtype = torch.float32) -> Counter[int]:
    def backward() -> Any:
        gradient = torch.empty(indices, 64, dtype=dtype, device="cuda")
        index = torch.empty(indices, dtype=torch.int64, device="cuda")
        return torch.ops.aten.embedding_dense_backward(gradient, index, rows, -1, False), gradient, index

    return Counter(temporaries(backward))


def test_up_to_3072_indices_the_backward_of_an_embedding_takes_nothing() -> None:
    assert embedding_backward(3072, 50_000) == Counter()


def test_more_indices_keep_a_float32_row_for_every_ten_of_them_and_for_every_different_one() -> None:
    rows = 819 + 8192  # numel / 10, and at most as many different ones as there are

    assert embedding_backward(8192, 50_000, torch.bfloat16)[rows * 64 * 4] == 1


@pytest.mark.skipif(not torch_releases.since(2, 11), reason="they are not before torch 2.11")
def test_few_different_indices_are_added_with_atomics_into_a_float32_copy_of_the_gradient() -> None:
    taken = embedding_backward(8192, 100, torch.bfloat16)

    assert taken[100 * 64 * 4] == 1
    assert taken[(819 + 100) * 64 * 4] == 0


def test_a_gemm_takes_its_workspace_after_its_result_once_for_a_thread_and_keeps_it() -> None:
    with paper.gpu(TARGET) as gpu:
        a = torch.empty(64, 64, device="cuda")
        products = [a @ a, a @ a]
        asked = [e.requested_bytes for e in gpu.recorder.events() if isinstance(e, Alloc)]
    del products

    assert asked == [16384, 16384, 8519680, 16384]


@pytest.mark.parametrize(
    ("target", "size"), [("sm_80", 8519680), ("sm_90", 32 << 20), ("sm_100", 32 << 20), ("sm_120", 32 << 20)]
)
def test_hopper_and_blackwell_take_larger_workspaces(target: str, size: int) -> None:
    with paper.gpu(target) as gpu:
        a = torch.empty(8, 8, device="cuda")
        product = a @ a
        asked = [e.requested_bytes for e in gpu.recorder.events() if isinstance(e, Alloc)]
    del product

    assert asked[-1] == size


def test_a_view_in_inference_mode_is_one_of_the_tensor_that_it_views() -> None:
    with paper.gpu(TARGET) as gpu, torch.inference_mode():
        whole = torch.empty(4, 8, device="cuda")
        row = whole[1]

        assert gpu.recorder.block_of(row) == gpu.recorder.block_of(whole)


def test_a_matrix_whose_rows_and_columns_are_both_scattered_is_copied_for_the_gemm() -> None:
    """As the gradient of a sum is: one number spread over rows and columns."""

    def product(spread: torch.Tensor) -> Any:
        weight = torch.empty(64, 128, device="cuda")
        return spread, weight, spread @ weight

    one_number = temporaries(lambda: product(torch.empty((), device="cuda").expand(32, 64)))
    transposed = temporaries(lambda: product(torch.empty(64, 32, device="cuda").t()))

    assert one_number == [32 * 64 * 4]
    assert transposed == []


def test_a_masked_scatter_counts_under_the_mask_for_every_element() -> None:
    """As multimodal models put images in the places of tokens."""
    rows, width = 512, 64

    def scatter() -> Any:
        text, images = (torch.empty(rows, width, device="cuda") for _ in range(2))
        chosen = torch.empty(rows, 1, dtype=torch.bool, device="cuda")
        return text, images, chosen, text.masked_scatter_(chosen, images)

    assert temporaries(scatter)[:2] == [rows * width * 8, rows * width]


def test_on_the_cpu_nothing_is_taken_beside_results() -> None:
    def select() -> Any:
        x, mask = torch.empty(8, 100_000, device="cuda"), torch.empty(8, 1, dtype=torch.bool, device="cuda")
        return x, mask, x.topk(50), x.masked_scatter_(mask, x), torch.randperm(1000, device="cuda")

    assert temporaries(select, "cpu") == []


def test_a_mean_by_scatter_counts_how_many_came_to_each_place() -> None:
    def scatter() -> Any:
        into, source = torch.empty(8, 16, device="cuda"), torch.empty(32, 16, device="cuda")
        index = torch.empty(32, 16, dtype=torch.int64, device="cuda")
        return source, index, into, into.scatter_reduce(0, index, source, "mean")

    assert temporaries(scatter) == [32 * 16 * 4, 8 * 16 * 4, 8 * 16]


def test_a_loss_of_two_classes_keeps_a_storage_of_the_size_of_its_input(taken: Any) -> None:
    def make() -> list[torch.Tensor]:
        return [torch.empty(64, 64, device="cuda") for _ in range(2)]

    cross_entropy = taken(make, torch.nn.functional.binary_cross_entropy)
    huber = taken(make, torch.nn.functional.huber_loss)

    assert (cross_entropy.kept_bytes, cross_entropy.temporary_bytes) == ([64 * 64 * 4], [4])
    assert (huber.kept_bytes, huber.temporary_bytes) == ([4], [64 * 64 * 4])


def test_one_draw_takes_an_exponential_draw_for_every_class(taken: Any) -> None:
    found = taken(lambda: [torch.empty(4, 1000, device="cuda")], lambda x: torch.multinomial(x, 1))

    assert found.kept == [((4, 1), "int64")]
    assert max(found.temporary_bytes) == found.temporary_bytes[-1] == 4 * 1000 * 4


def test_the_largest_of_long_rows_are_found_by_counting_digits_in_blocks(taken: Any) -> None:
    def run(x: torch.Tensor) -> Any:
        return x.topk(50)

    blocks = 8 * -(-100_000 // (4 * 256))  # four values a thread, as there are multiprocessors enough
    spread = taken(lambda: [torch.empty(8, 100_000, device="cuda")], run).temporary_bytes
    routed = taken(lambda: [torch.empty(8, 64, device="cuda")], run).temporary_bytes

    assert (spread[:5], routed) == ([8 * 4, 8 * 4, 2 * 8 * 4, 2 * 8 * 4, blocks * 256 * 2], [])


def test_a_permutation_sorts_numbers_by_random_keys(taken: Any) -> None:
    found = taken(list, lambda: torch.randperm(1000, device="cuda"))

    assert found.kept == [((1000,), "int64")]
    assert found.temporary[:3] == [((1000,), "int64"), ((1000,), "int32"), ((1000,), "int32")]


def test_the_backward_of_distances_makes_a_gradient_for_every_pair() -> None:
    def backward() -> Any:
        x, other = (torch.empty(rows, 16, device="cuda", requires_grad=rows == 8) for rows in (8, 12))
        distances = torch.cdist(x, other, p=1.0)
        return x, other, distances, torch.autograd.grad(distances, x, torch.empty_like(distances))

    assert 12 * 8 * 16 * 4 in temporaries(backward)


def test_the_backward_of_bags_sorts_the_places_however_few_they_are(taken: Any) -> None:
    def make() -> list[torch.Tensor]:
        weight = torch.empty(100, 32, device="cuda", requires_grad=True)
        places, bags = (torch.empty(count, dtype=torch.int64, device="cuda") for count in (640, 64))
        summed = torch.nn.functional.embedding_bag(places, weight, bags, mode="sum")
        return [summed, weight, torch.empty_like(summed)]

    found = taken(make, torch.autograd.grad)

    assert found.kept == [((100, 32), "float32")]
    assert found.temporary[:3] == [((640,), "int64")] * 3
