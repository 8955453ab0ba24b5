"""Operators of every library that torch's CUDA code calls run on paper, and workspaces that nobody knows are named.

Shapes, strides and gradients of all operators: tests/paper/opinfo.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner import paper  # before torch
from planner.events import Category

import torch  # isort: skip
from torch import Tensor, linalg, nn  # isort: skip
from torch.nn import functional  # isort: skip
from torch.nn.attention import SDPBackend, sdpa_kernel  # isort: skip

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device="cuda", requires_grad=True)


def attention(backend: SDPBackend, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    with sdpa_kernel(backend):
        return functional.scaled_dot_product_attention(*(random(2, 4, 64, 32, dtype=dtype) for _ in range(3)))


def sparse_product() -> Tensor:
    return torch.sparse.mm(torch.eye(8).to_sparse_csr().cuda(), random(8, 4))


def ctc() -> Tensor:
    scores, targets = random(50, 4, 20).log_softmax(-1), torch.ones(4, 12, dtype=torch.int64, device="cuda")
    return functional.ctc_loss(scores, targets, (50,) * 4, (12,) * 4)


def embedded(rows: int) -> Tensor:
    return functional.embedding(torch.randint(100, (rows,), device="cuda"), random(100, 32))


CUDNN, SOLVER = "cuDNN recurrent network", "cuSOLVER"
OPERATORS: dict[str, tuple[Callable[[], Tensor], tuple[str, ...]]] = {
    "matmul": (lambda: random(8, 16) @ random(16, 4), ()),
    "bmm": (lambda: random(2, 8, 16, dtype=torch.bfloat16) @ random(2, 16, 4, dtype=torch.bfloat16), ()),
    "linear": (lambda: functional.linear(random(8, 16), random(4, 16), random(4)), ()),
    "convolution": (lambda: functional.conv2d(random(2, 8, 16, 16), random(4, 8, 3, 3)), ()),
    "transposed convolution": (lambda: functional.conv_transpose2d(random(2, 8, 16, 16), random(8, 4, 3, 3)), ()),
    "depthwise convolution": (lambda: functional.conv2d(random(2, 8, 16, 16), random(8, 1, 3, 3), groups=8), ()),
    "pooling": (lambda: functional.max_pool2d(random(2, 8, 16, 16), 2), ()),
    "LSTM": (lambda: nn.LSTM(8, 16).cuda()(random(10, 4, 8))[0], (CUDNN,)),
    "batch norm": (lambda: nn.BatchNorm2d(8).cuda()(random(2, 8, 16, 16)), ()),
    "layer norm": (lambda: functional.layer_norm(random(64, 32), (32,), random(32)), ()),
    "group norm": (lambda: functional.group_norm(random(2, 8, 16, 16), 4), ()),
    "flash attention": (lambda: attention(SDPBackend.FLASH_ATTENTION), ()),
    "efficient attention": (lambda: attention(SDPBackend.EFFICIENT_ATTENTION), ()),
    "cuDNN's attention": (lambda: attention(SDPBackend.CUDNN_ATTENTION), ()),
    "attention of products": (lambda: attention(SDPBackend.MATH, torch.float64), ()),
    "Fourier transform": (lambda: torch.fft.rfft(random(64)).abs(), ("cuFFT",)),
    "eigh": (lambda: linalg.eigh(random(40, 40)).eigenvalues, (SOLVER,)),
    "svd": (lambda: linalg.svd(random(40, 40)).S, (SOLVER,)),
    "cholesky": (lambda: linalg.cholesky(random(40, 40)), (SOLVER,)),
    "inverse": (lambda: linalg.inv(random(40, 40)), (SOLVER,)),
    "sparse product": (sparse_product, ("cuSPARSE",)),
    "sort": (lambda: random(5000, 20).sort(0).values, ()),
    "topk": (lambda: random(8, 10_000).topk(50).values, ()),
    "cumsum": (lambda: random(4096).cumsum(0), ()),
    "embedding": (lambda: embedded(8192), ()),
    "indexing": (lambda: random(100, 8)[torch.randint(100, (5000,), device="cuda")], ()),
    "cross entropy": (lambda: functional.cross_entropy(random(8, 100), torch.randint(100, (8,), device="cuda")), ()),
    "CTC": (ctc, ()),
    "dropout": (lambda: functional.dropout(random(64, 32), 0.5), ()),
    "norms of many": (lambda: torch.stack(torch._foreach_norm([random(8, 8), random(100_000)])), ()),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_it_runs_both_ways_and_names_the_workspaces_that_nobody_knows(name: str) -> None:
    run, unknown = OPERATORS[name]
    with paper.gpu("sm_90") as gpu:
        run().sum().backward()

        assert gpu.unknown_workspaces() == unknown


def test_a_sparse_tensor_can_be_told_of_and_has_no_block_of_its_own() -> None:
    """As a gradient of an embedding is."""
    with paper.gpu("sm_90") as gpu:
        places, values = torch.randint(8, (2, 20), device="cuda"), random(20)
        sparse = torch.sparse_coo_tensor(places, values, (8, 8))
        gpu.recorder.assign(sparse, Category.GRADIENT)

        assert gpu.recorder.block_of(sparse) is None
        assert gpu.recorder.block_of(values) is not None


def test_a_view_in_inference_mode_is_one_of_the_tensor_that_it_views() -> None:
    with paper.gpu("sm_90") as gpu, torch.inference_mode():
        whole = torch.empty(4, 8, device="cuda")

        assert gpu.recorder.block_of(whole[1]) == gpu.recorder.block_of(whole)
