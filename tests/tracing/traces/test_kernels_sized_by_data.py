"""Operators whose results are as large as the data says, and programs that read values."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import planner.paper as paper
from planner.errors import TraceError
from planner.paper import values


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


class KnowsOne(values.Reader):
    def answer(self, *_: object) -> float:
        return 1.0


def test_a_mask_from_the_host_says_how_many_it_selects() -> None:
    with paper.gpu("sm_90"):
        assert torch.empty(4, 8, device="cuda")[torch.tensor([True, False, True, True]).cuda()].shape == (3, 8)


def test_labels_from_the_host_say_how_many_of_them_count() -> None:
    tokens = torch.arange(4, 132).view(4, 32)
    tokens[:, 20:] = 0

    def counted(on_device: torch.Tensor) -> list[int]:
        labels = on_device.clone()
        labels[:, :8] = -100
        shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        attended = torch.ones_like(on_device)
        attended[:, 25:] = 0
        both = attended.bool() & (on_device != 0) & ~(on_device < 8)
        states = torch.empty(4, 32, 8, device=on_device.device)
        return [
            len(states[shifted != -100]), len(both.nonzero()), int((torch.cat([on_device, labels]) == 0).sum()),
            *(on_device != 0).sum(-1).tolist(),
        ]  # fmt: skip

    with paper.gpu("sm_90"):
        assert counted(tokens.cuda()) == counted(tokens)


def test_truth_values_that_decide_alone_need_no_others() -> None:
    with paper.gpu("sm_90"):
        unknown = torch.randn(4, device="cuda") > 0
        certain, never = torch.ones(4, dtype=torch.bool, device="cuda"), torch.zeros(4, dtype=torch.bool, device="cuda")

        assert len((unknown | certain).nonzero()) == 4
        assert len((unknown & never).nonzero()) == 0
        with pytest.raises(TraceError, match=r"aten\.nonzero"):
            (unknown | never).nonzero()


def test_what_lies_at_known_places_is_known() -> None:
    with paper.gpu("sm_90"):
        rows = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]]).cuda()
        chosen = torch.tensor([True, False, True]).cuda().nonzero().view(-1)

        assert len(rows[chosen].nonzero()) == len(rows.index_select(0, chosen).nonzero()) == 3


def test_a_mask_that_was_scattered_to_known_places_selects_as_many() -> None:
    with paper.gpu("sm_90"):
        mask, places = torch.zeros(1, 64, dtype=torch.bool).cuda(), torch.tensor([[3, 17, 40]]).cuda()
        mask.scatter_(1, places, torch.ones(1, 3, dtype=torch.bool, device="cuda"))

        assert (mask == 1.0).nonzero().shape == (3, 2)


def test_numbers_that_nobody_has_make_labels_unknown() -> None:
    with paper.gpu("sm_90"):
        labels = torch.ones(4, 8, dtype=torch.int64).cuda()
        labels[0] = torch.randn(8, device="cuda").long()
        with pytest.raises(TraceError, match=r"aten\.nonzero"):
            labels.nonzero()


@pytest.mark.parametrize(
    ("operator", "run"),
    [
        ("aten.nonzero", lambda x: x.nonzero()),
        ("aten.nonzero", lambda x: x[x > 0]),
        ("aten.nonzero", lambda x: x.masked_select(x > 0)),
        ("aten.unique", lambda x: x.unique()),
        ("aten.repeat_interleave", lambda x: torch.repeat_interleave(x.long())),
    ],
)
def test_what_depends_on_values_is_refused_with_the_operator_and_the_line(operator: str, run: Any) -> None:
    with paper.gpu("sm_90"), pytest.raises(TraceError, match=rf"{re.escape(operator)}.*test_kernels_sized_by_data.py"):
        run(torch.randn(4, device="cuda"))


def test_a_refusal_names_the_module_that_reads() -> None:
    class Router(nn.Module):
        def forward(self, x: torch.Tensor) -> int:
            return int(x.argmax())

    with paper.gpu("sm_90"), pytest.raises(TraceError, match=r"module Router"):
        Router()(torch.randn(4, device="cuda"))


def test_a_repeat_of_known_size_needs_no_values() -> None:
    with paper.gpu("sm_90"):
        repeats = torch.ones(3, dtype=torch.int64, device="cuda") + 1

        assert torch.repeat_interleave(random(3, 8), repeats, dim=0, output_size=6).shape == (6, 8)


def test_a_fill_under_a_mask_reads_nothing() -> None:
    with paper.gpu("sm_90"):
        filled = random(4, 8)
        filled[random(4, 8) > 0] = 0.0

        assert filled.shape == (4, 8)


def test_values_are_forgotten_when_the_device_writes_over_them() -> None:
    with paper.gpu("sm_90"):
        counts = torch.tensor([1, 2, 3]).to("cuda")
        assert counts.tolist() == [1, 2, 3]
        counts[1] = counts[2] * 2
        assert counts.tolist() == [1, 6, 3]
        counts[1] = torch.randn((), device="cuda").long()
        with pytest.raises(TraceError):
            counts.tolist()


def test_the_product_of_a_backward_reads_no_zeros() -> None:
    with paper.gpu("sm_90"):
        x = torch.randn(4, 4, device="cuda", requires_grad=True)
        x.cumprod(0).sum().backward()

    assert x.grad is not None


def test_distinct_values_of_the_host_are_counted_and_keep_a_storage_as_large_as_the_data() -> None:
    with paper.gpu("sm_90"):
        found, inverse, counts = torch.tensor([3, 1, 3, 3]).cuda().unique(return_inverse=True, return_counts=True)

        assert (found.shape, inverse.shape, counts.shape) == ((2,), (4,), (2,))
        assert found.untyped_storage().nbytes() == 4 * 8
        assert torch.bincount(torch.tensor([0, 5]).cuda()).shape == (6,)
        assert torch.tensor([2, 2, 7, 2]).cuda().unique_consecutive(return_counts=True)[1].shape == (3,)


def test_what_a_reduction_makes_of_values_from_the_host_is_known() -> None:
    with paper.gpu("sm_90"):
        labels = torch.tensor([1, 4, 2]).cuda()

        assert nn.functional.one_hot(labels).shape == (3, 5)
        assert (int(labels.sum()), bool(labels.max() == 4), bool(labels.max() < 4)) == (7, True, False)


def test_places_that_a_fill_named_are_taken_to_differ() -> None:
    """The backward of `index_fill` with a tensor, whose value is read, asks how many there are."""
    with paper.gpu("sm_90"), values.read_by(KnowsOne()):
        value = torch.randn((), device="cuda", requires_grad=True)
        places = random(3).long()
        torch.randn(4, 4, device="cuda").index_fill(0, places, value).sum().backward()

        assert value.grad is not None


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_rows_that_stay_of_a_sparse_gradient_are_counted_where_its_places_are_known_and_refused_elsewhere() -> None:
    """Torch counts them with Thrust: what it brings to the host no operator reads."""

    def sparse(places: torch.Tensor) -> torch.Tensor:
        return torch.sparse_coo_tensor(places, random(4, 8), (100, 8))

    with paper.gpu("sm_90"):
        of_host = sparse(torch.tensor([[7, 3, 7, 7]]).cuda()).coalesce()

        assert (of_host._indices().shape, of_host._values().shape, of_host.is_coalesced()) == ((1, 2), (2, 8), True)
        with pytest.raises(TraceError, match=r"aten\.coalesce"):
            sparse(random(1, 4).long()).coalesce()
