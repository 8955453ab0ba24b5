"""What docs/decisions.md says of the paper GPU, as far as a program can say it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from other_gpus import printed_on

from planner import paper

import torch  # isort: skip

from planner.errors import TraceError
from planner.events import Alloc


@contextmanager
def allocations() -> Iterator[Callable[[], list[int]]]:
    with paper.gpu("sm_90") as gpu:
        yield lambda: [event.requested_bytes for event in gpu.recorder.events() if isinstance(event, Alloc)]


def test_a_tensor_on_paper_is_an_ordinary_tensor_of_the_device_type_cuda() -> None:
    with paper.gpu("sm_90") as gpu:
        tensor = torch.empty(3, device=gpu.device)

        assert (type(tensor), tensor.device.type, tensor.is_cuda) == (torch.Tensor, "cuda", True)


def test_gradients_that_meet_at_a_node_are_added_in_place() -> None:
    """Autograd adds into a new tensor where it meets a subclass, as FakeTensor is one."""
    with allocations() as so_far:
        x = torch.empty(1000, device="cuda", requires_grad=True)
        y = x * 2
        loss = (y * 3 + y * 4).sum()
        before = len(so_far())
        loss.backward()

        assert so_far()[before:].count(4000) == 3  # of y by way of 3, of y by way of 4, of x


def test_a_small_value_from_the_host_comes_back_as_it_was() -> None:
    with paper.gpu("sm_90"):
        on_device = torch.tensor([3, 1, 2]).to("cuda")

        assert (on_device.tolist(), on_device[1].item(), on_device.clone().cpu().tolist()) == ([3, 1, 2], 1, [3, 1, 2])
        on_device[0] = 7
        assert on_device.tolist() == [7, 1, 2]


def test_sparse_and_nested_tensors_are_followed_without_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    with paper.gpu("sm_90"):
        places, numbers = torch.tensor([[0, 1], [1, 0]]).to("cuda"), torch.ones(2).to("cuda")
        dense = torch.zeros(2, 2).to("cuda")
        dense.addmm_(torch.sparse_coo_tensor(places, numbers, (2, 2), check_invariants=False), dense)
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], device="cuda") * 2

        assert nested.size(0) == 2
    assert "RecordFunction" not in capfd.readouterr().err


FOLLOWED: dict[str, tuple[Callable[[torch.Tensor], object], list[int]]] = {
    "in place": (lambda t: t.add_(1), [4, 2, 3]),
    "through a view": (lambda t: t[:1].zero_(), [0, 1, 2]),
    "by a list of tensors": (lambda t: torch._foreach_add_([t], 1), [4, 2, 3]),
}


@pytest.mark.parametrize(("write", "found"), FOLLOWED.values(), ids=FOLLOWED)
def test_what_is_written_over_a_known_value_is_known(write: Callable[[torch.Tensor], object], found: list[int]) -> None:
    with paper.gpu("sm_90"):
        on_device = torch.tensor([3, 1, 2]).to("cuda")
        write(on_device)

        assert on_device.tolist() == found
        assert (on_device * 2).tolist() == [2 * each for each in found]


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "out of another operator": lambda t: torch.add(torch.empty_like(t), 1, out=t),
    "a copy from the device": lambda t: t.copy_(torch.empty_like(t)),
    "by a mask": lambda t: t.masked_fill_(torch.empty_like(t, dtype=torch.bool), 0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_value_is_forgotten_once_the_device_has_written_over_it(write: Callable[[torch.Tensor], object]) -> None:
    with paper.gpu("sm_90"):
        on_device = torch.tensor([3, 1, 2]).to("cuda")
        write(on_device)

        with pytest.raises(TraceError, match="planner does not compute values"):
            on_device.tolist()


def test_a_value_does_not_pass_to_the_next_tensor_at_its_address() -> None:
    with paper.gpu("sm_90"):
        for _ in range(3):
            on_device = torch.tensor([3, 1, 2]).to("cuda")
            del on_device
            fresh = torch.empty(3, dtype=torch.int64, device="cuda")

            with pytest.raises(TraceError):
                fresh.tolist()


def test_what_was_computed_of_what_is_not_known_has_no_value() -> None:
    with paper.gpu("sm_90"):
        on_device = torch.tensor([3, 1, 2]).to("cuda")

        with pytest.raises(TraceError):
            (on_device * torch.empty_like(on_device)).tolist()


def test_a_large_filled_tensor_has_its_value_only_in_the_dtype_that_it_was_filled_in() -> None:
    with paper.gpu("sm_90"):
        ones, zeros = (torch.full((1 << 24,), value, device="cuda") for value in (1.0, 0.0))
        turned = torch.full_like(ones, 1 + 2j, dtype=torch.complex64).conj()

        assert (turned == 1 - 2j).all().item()
        assert (zeros.view(torch.int32) == 0).all().item()
        with pytest.raises(TraceError):
            (ones.view(torch.int32) == 1).any().item()


CROWDED = """
import ctypes
mmap = ctypes.CDLL(None).mmap
mmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for at in range(1, 127, 8):
    mmap(at << 40, 4096, 0, 0x4022, -1, 0)  # nobody's page, as a heap that begins anywhere

from planner import paper

with paper.gpu("sm_90") as gpu:
    import torch

    tensors = [torch.empty(terabytes << 40, dtype=torch.uint8, device=gpu.device) for terabytes in (3, 1, 5)]
    spans = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each in tensors)
    assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:])), spans
    try:
        torch.empty(100 << 40, dtype=torch.uint8, device=gpu.device)
    except RuntimeError as error:
        print(error)
    print(len(gpu.recorder.events()))
"""


def test_paper_needs_no_large_part_of_the_address_space_in_one() -> None:
    """Go's runtime, say, puts its heap anywhere (since 1.26), and a library in Go may be in the process."""
    assert printed_on("sm_90", CROWDED) == f"the paper GPU has no address space for {100 << 40} bytes\n3\n"


def test_addresses_are_taken_again_however_much_was_ever_allocated() -> None:
    """A process has 128 TiB of them."""
    with paper.gpu("sm_90"):
        kept = torch.empty(1, device="cuda")
        given = {torch.empty(1 << 40, dtype=torch.uint8, device="cuda").data_ptr() for _ in range(1000)}

    assert len(given) == 1
    assert kept.data_ptr() not in given


TRACED = """
import sys
from planner.allocator.replay import replay
from planner.job.loading import load_document
from planner.planning.trace_source import USUAL_SOURCE
for gpu in sys.argv[1:]:
    job = load_document({
        "model": {"decoder": {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 2, "ffn": 64, "vocab": 64}},
        "train": {"micro_batch_size": 1, "sequence_length": 32}, "cluster": {"gpus_per_node": 1, "gpu": gpu},
    }, "job.yaml")
    print(max(replay(USUAL_SOURCE.trace_rank(job, 0).written_out()).requested_bytes))
"""


def test_what_one_gpu_needs_is_not_left_to_the_next_one_of_a_process() -> None:
    """AMD's has another workspace for products, by a variable of the environment."""

    def peaks(*gpus: str) -> list[str]:
        command = [sys.executable, "-c", TRACED, *gpus]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert peaks("MI300X-192GB", "H100-SXM-80GB")[1:] == peaks("H100-SXM-80GB")
