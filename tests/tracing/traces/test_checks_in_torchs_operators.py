"""Operators of torch that read a value in C++: to check it, to say it, or for a size that follows from arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType

import pytest
import torch

import planner.paper as paper
from planner.errors import TraceError
from planner.paper import values


class Listener(values.Reader):
    """It answers nothing itself, and writes down what the tables have answered."""

    def __init__(self) -> None:
        self.noted: list[tuple[values.Value, str]] = []

    def note(self, tensor: torch.Tensor, frames: Sequence[FrameType], answer: values.Value, why: str) -> None:  # noqa: ARG002
        self.noted.append((answer, why))


def covariance_with_weights() -> torch.Tensor:
    return torch.cov(torch.randn(4, 32, device="cuda"), aweights=torch.rand(32, device="cuda"))


def signal_of_a_spectrum() -> torch.Tensor:
    window = torch.rand(64, device="cuda")
    spectrum = torch.stft(torch.randn(640, device="cuda"), 64, window=window, return_complex=True)
    return torch.istft(spectrum, 64, window=window)


def random(*shape: int, trains: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", requires_grad=trains)


def gradient_of_what_is_scattered() -> torch.Tensor:
    """As multimodal models put images in the places of tokens."""
    images, tokens = random(5, 8, trains=True), random(32, 8)
    tokens.masked_scatter(random(32, 1) > 0, images).sum().backward()
    assert images.grad is not None
    return images.grad


def gradient_of(run: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(4, 4, dtype=dtype, device="cuda", requires_grad=True)
    return torch.autograd.grad(run(x).sum() * random(1)[0], x)[0]


def written_down(x: torch.Tensor) -> torch.Tensor:
    assert f"{x:.3f}" == "0.000"
    return x


def draws_of_a_distribution() -> torch.Tensor:
    return torch.distributions.MultivariateNormal(random(4), random(4, 4), validate_args=True).sample()


def attended(mask: torch.Tensor) -> torch.Tensor:
    """As attention takes a mask of padding."""
    assert pytest.importorskip("transformers.masking_utils")._ignore_causal_mask_sdpa(mask, 8, 8, 0, 0)
    return mask


EIGENVECTORS = [True, True, True, False]
"""What is given is finite, as are they; the loss does not depend on their phases; and a matrix is not singular."""


@pytest.mark.parametrize(
    ("run", "shape", "answers"),
    [
        (covariance_with_weights, (4, 4), [True, True, False]),
        (lambda: torch.corrcoef(torch.randn(4, 32, device="cuda")), (4, 4), []),  # how many there are is known
        (signal_of_a_spectrum, (640,), [False]),
        (lambda: torch.combinations(torch.randn(40, device="cuda"), 3), (9880, 3), []),
        (lambda: torch.combinations(torch.randn(6, device="cuda"), 2, with_replacement=True), (21, 2), []),
        (gradient_of_what_is_scattered, (5, 8), []),
        (lambda: gradient_of(torch.trace), (4, 4), [1.0]),
        (lambda: gradient_of(torch.prod), (4, 4), [0]),
        (lambda: gradient_of(lambda x: x.prod(0)), (4, 4), [0]),
        (lambda: gradient_of(lambda x: x.cumprod(0)), (4, 4), [False]),
        (lambda: gradient_of(lambda x: torch.linalg.eig(x).eigenvectors.abs()), (4, 4), EIGENVECTORS),
        (lambda: gradient_of(lambda x: torch.linalg.eigh(x).eigenvectors.abs(), torch.complex64), (4, 4), [True]),
        (lambda: gradient_of(lambda x: torch.linalg.svd(x).U.abs(), torch.complex64), (4, 4), [True]),
        (lambda: torch.searchsorted(random(8), random(4), sorter=random(8).long()), (4,), [0, 0]),
        (lambda: torch.segment_reduce(random(8), "sum", lengths=random(3).long()), (3,), [True, True]),
        (lambda: written_down(random(1)[0]), (), [0]),
        (lambda: torch.normal(random(4), random(4)), (4,), [True, True]),
        (draws_of_a_distribution, (4,), [True, True, True, False]),
        (lambda: attended(random(4, 8) > 0), (4, 8), [True]),
        (lambda: torch.linalg.inv(random(4, 4)), (4, 4), [False]),
        (lambda: torch.linalg.eigvals(random(4, 4)), (4,), [True]),
        (lambda: torch.linalg.svdvals(random(4, 4)), (4,), []),  # a flag that was filled with zeros is known there
        (lambda: torch.linalg.qr(random(6, 4, 4)).Q, (6, 4, 4), []),  # a batch's own answer is on the host
    ],
    ids=[
        "cov",
        "corrcoef",
        "istft",
        "combinations",
        "with_replacement",
        "masked_scatter",
        "trace",
        "prod",
        "prod_of_a_dim",
        "cumprod",
        "eig",
        "eigh",
        "svd",
        "searchsorted",
        "segment_reduce",
        "format",
        "normal",
        "distribution",
        "mask",
        "inv",
        "eigvals",
        "svdvals",
        "qr",
    ],
)
def test_they_run_and_what_they_read_is_written_down(
    run: Callable[[], torch.Tensor], shape: tuple[int, ...], answers: list[bool]
) -> None:
    listener = Listener()
    with paper.gpu("sm_90"), values.read_by(listener):
        found = run().shape

    assert (found, [answer for answer, _ in listener.noted]) == (shape, answers)


def test_they_are_differentiated_as_before() -> None:
    with paper.gpu("sm_90"):
        x = torch.randn(4, 32, device="cuda", requires_grad=True)
        torch.cov(x).sum().backward()

    assert x.grad is not None
    assert x.grad.shape == (4, 32)


def test_whether_all_is_close_is_for_the_reader_to_say() -> None:
    with paper.gpu("sm_90"), pytest.raises(TraceError, match="a value of a tensor"):
        torch.allclose(x := random(4), x + 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.normal(random(4), random(4)),
        lambda: torch.searchsorted(random(8), random(4)),
        lambda: torch.linalg.eigvals(random(4, 4)).real,
    ],
    ids=["normal", "searchsorted", "eigvals"],
)
def test_what_a_program_reads_of_their_results_is_for_its_reader_to_say(make: Callable[[], torch.Tensor]) -> None:
    with paper.gpu("sm_90"), pytest.raises(TraceError, match="a value of a tensor"):
        make()[0].item()
