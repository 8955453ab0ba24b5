"""Messages of being out of GPU memory, found in logs, and what their figures say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch_messages import processes, reserved

from planner.errors import PlannerError
from planner.report.style import Style
from planner.truth.failures.causes import judge
from planner.truth.failures.explanation import explain
from planner.truth.failures.explanation_text import render
from planner.truth.failures.gpu_messages import find_messages
from planner.truth.failures.host_messages import find_host_failures
from planner.truth.failures.messages import Cause, Form, Frame, ProcessBytes
from planner.units import GIB, MIB

Message = Callable[..., str]
FIGURES = {"device": 0, "tried": "2.00 GiB", "total": "79.00 GiB", "free": "1.00 GiB", "allocated": "70.00 GiB"}


def test_the_figures_of_a_message_are_read(message: Message) -> None:
    (failure,) = find_messages(message(this="77.50 GiB", others=[(4711, "0.25 GiB")], device=3))

    assert failure.device == 3
    assert failure.tried_bytes == 2 * GIB
    assert failure.reserved_bytes == 77 * GIB
    assert failure.this_process_bytes == int(77.5 * GIB)
    assert failure.other_processes == (ProcessBytes(4711, GIB // 4),)
    assert judge(failure).held == {
        "free": GIB,
        "pytorch_allocated": 76 * GIB,
        "pytorch_unallocated": GIB,
        "outside_allocator": GIB // 2,
        "other_processes": GIB // 4,
        "not_listed": GIB // 4,
    }


def test_what_was_missing_is_what_was_asked_for_less_what_was_free(message: Message) -> None:
    (failure,) = find_messages(message(tried="2.50 GiB", free="1.00 GiB"))

    assert judge(failure).missing_bytes == 3 * GIB // 2


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"allocated": "60.00 GiB", "unallocated": "17.00 GiB"}, Cause.FRAGMENTATION),
        (
            {"allocated": "40.00 GiB", "unallocated": "0 bytes", "this": "40.50 GiB", "others": [(7, "37.00 GiB")]},
            Cause.OTHER_PROCESS,
        ),
        ({"allocated": "50.00 GiB", "unallocated": "0 bytes", "this": "77.00 GiB"}, Cause.OUTSIDE_ALLOCATOR),
        (
            {"allowed": "39.50 GiB", "allocated": "38.00 GiB", "unallocated": "0 bytes", "free": "40.00 GiB"},
            Cause.LIMIT,
        ),
        (
            {"allowed": "39.50 GiB", "allocated": "20.00 GiB", "unallocated": "18.00 GiB", "free": "40.00 GiB"},
            Cause.FRAGMENTATION,
        ),
        (
            {"tried": "77.00 GiB", "free": "76.50 GiB", "allocated": "10.50 MiB", "unallocated": "3.50 MiB",
             "others": [(1234, "2.50 GiB")]},
            Cause.SINGLE_REQUEST,
        ),
        (
            {"tried": "78.50 GiB", "free": "77.00 GiB", "allocated": "1.00 GiB", "unallocated": "0 bytes"},
            Cause.SINGLE_REQUEST,
        ),
    ],
)  # fmt: skip
def test_the_cause_is_what_alone_would_have_sufficed(facts: dict[str, object], cause: Cause, message: Message) -> None:
    (failure,) = find_messages(message(**facts))

    assert judge(failure).cause is cause


def test_what_cuda_graphs_keep_is_told_apart_from_tensors(message: Message) -> None:
    (failure,) = find_messages(message(allocated="76.00 GiB", pools="30.00 GiB"))
    judged = judge(failure)

    assert judged.cause is Cause.PRIVATE_POOLS
    assert (judged.held["pytorch_allocated"], judged.held["pytorch_private_pools"]) == (46 * GIB, 30 * GIB)


def test_a_process_in_a_container_is_found_among_those_that_are_listed(message: Message) -> None:
    (failure,) = find_messages(message(others=[(2514, "77.40 GiB"), (9, "0.25 GiB")]))
    judged = judge(failure)

    assert judged.held["other_processes"] == GIB // 4
    assert "this one" in judged.notes[0]


def test_two_processes_that_could_be_this_one_are_not_guessed_at(message: Message) -> None:
    text = message(total="170.00 GiB", free="1.00 GiB", others=[(1, "80.00 GiB"), (2, "80.00 GiB")])
    (failure,) = find_messages(text)

    assert "outside_allocator" not in judge(failure).held


def test_figures_that_a_driver_does_not_know_are_none(message: Message) -> None:
    """WSL and Windows: 2**64 - 1 bytes."""
    (failure,) = find_messages(message(this="17179869184.00 GiB"))

    assert failure.this_process_bytes is None


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"allocated": "90.00 GiB"}, "lends memory of the host"),
        ({"free": "20.00 GiB"}, "more than the GPU's"),
        ({"this": "60.00 GiB"}, "PyTorch has reserved 77.00 GiB in it"),
        ({"this": "77.50 GiB", "others": [(1, "30.00 GiB")]}, "more than the GPU has"),
    ],
)
def test_figures_that_do_not_add_up_are_said(facts: dict[str, object], said: str, message: Message) -> None:
    (failure,) = find_messages(message(**facts))
    (contradiction,) = judge(failure).contradictions

    assert said in contradiction


def test_rounding_to_two_decimals_is_no_contradiction(message: Message) -> None:
    (failure,) = find_messages(
        message(allocated="77.00 GiB", unallocated="1.00 GiB", free="1.01 GiB", tried="5.00 GiB")
    )

    assert judge(failure).contradictions == ()


def test_a_form_that_is_not_known_is_said_to_be_unknown() -> None:
    (failure,) = find_messages("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB on some new device.")

    assert failure.form is Form.UNKNOWN
    assert judge(failure).cause is Cause.UNKNOWN
    assert failure.total_bytes is None


def test_a_message_that_was_cut_off_is_unknown_too(message: Message) -> None:
    assert find_messages(message()[:120])[0].form is Form.UNKNOWN


def test_a_text_without_a_failure_is_refused() -> None:
    with pytest.raises(PlannerError, match="nothing in it says that memory ran out"):
        explain("loss 0.25\nlearning rate 0.001\n", place="train.log")


def test_a_log_of_two_ranks_has_two_failures(message: Message) -> None:
    log = f"[rank0]: {message()}\n[rank7]: {message(device=7)}\n[rank0]: {message()}\n"

    assert [(each.rank, each.device, each.line) for each in find_messages(log)] == [(0, 0, 1), (7, 7, 2)]


def test_the_traceback_above_a_message_says_where_it_was_raised(message: Message) -> None:
    log = (
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 12, in <module>\n    main()\n'
        '  File "/job/model.py", line 34, in forward\n    return self.up(x)\n'
        '  File "/usr/lib/python3/site-packages/torch/nn/modules/linear.py", line 125, in forward\n'
        f"{message()}\n"
    )
    found = explain(log)

    assert found.messages[0][0].frames[1] == Frame("/job/model.py", 34, "forward")
    from planner.truth.failures.explanation import to_json

    assert to_json(found)["messages"][0]["raised_at"] == {"file": "/job/model.py", "line": 34, "function": "forward"}


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/srv/job/model.py", "/srv/job/model.py:34 forward"),
        ("/job/model.py", "/job/model.py:34 forward"),
        ("/home/ana/sft/train.py", "/home/ana/sft/train.py:34 forward"),
        ("models/model.py", "models/model.py:34 forward"),
    ],
)
def test_a_path_is_shown_as_the_log_has_it(message: Message, file: str, shown: str) -> None:
    log = f'Traceback (most recent call last):\n  File "{file}", line 34, in forward\n{message()}\n'

    (line,) = [each for each in render("train.log", explain(log), Style()).splitlines() if "raised at" in each]
    assert line.split("raised at")[1].strip() == shown


OLD = {"device": 0, "tried": "20.00 MiB", "total": "15.78 GiB", "free": "2.00 MiB", "allocated": "14.20 GiB"}


@pytest.mark.parametrize(
    ("figures", "cause", "said"),
    [
        (
            {**OLD, "reserved": "14.40 GiB"},
            Cause.FULL,
            "So little was missing that this would have covered it: what is not PyTorch's; what PyTorch had reserved "
            "in no tensor. It is less than a tenth of the GPU, and no cause: the next request would have failed.",
        ),
        (
            {**OLD, "allocated": "10.00 GiB", "reserved": "12.00 GiB"},
            Cause.NOT_PYTORCH,
            "Each alone would have sufficed: what is not PyTorch's; what PyTorch had reserved in no tensor.",
        ),
    ],
)
def test_what_would_have_covered_it_does_not_contradict_the_cause(
    figures: dict[str, str], cause: Cause, said: str
) -> None:
    found = explain(reserved(figures))
    shown = " ".join(render("train.log", found, Style()).split())

    assert (found.cause, said in shown, "alone would have sufficed" in shown) == (
        cause, True, cause is not Cause.FULL,
    )  # fmt: skip


def test_lines_that_a_terminal_broke_are_read(message: Message) -> None:
    assert find_messages(message().replace(" of which ", "\n  of which "))[0].free_bytes == GIB


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("RuntimeError: cuda runtime error (2) : out of memory at THCStorage.cu:58", Form.DRIVER),
        ("RuntimeError: HIP error: out of memory", Form.DRIVER),
        ("ncclUnhandledCudaError\nLast error:\nCuda failure 2 'out of memory'", Form.NCCL),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", Form.LIBRARY),
    ],
)
def test_what_others_than_torch_say_is_told_by_who_says_it(text: str, form: Form) -> None:
    (failure,) = find_messages(text)

    assert (failure.form, judge(failure).cause) == (form, Cause.OUTSIDE_ALLOCATOR)


@pytest.mark.parametrize(
    ("text", "form", "cause", "asked"),
    [
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of "
         "287.98 GiB of "
         "which 275.86 GiB is free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by PyTorch, "
         "with "
         "17.00 MiB allocated in private pools (e.g., HIP Graphs), and 54.99 MiB is reserved by PyTorch but "
         "unallocated.",
         Form.EXPANDABLE, Cause.LIMIT, 2 * MIB),
        ("torch.OutOfMemoryError: XPU out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of "
         "16.48 GiB of "
         "which 16.07 GiB is free. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by "
         "PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.",
         Form.DEVICE, Cause.SINGLE_REQUEST, 16 * GIB),
        ("RuntimeError: NPU out of memory. Tried to allocate 5.00 GiB (NPU 3; 60.00 GiB total capacity; 49.50 GiB "
         "already "
         "allocated; 49.50 GiB current active; 1.25 GiB free; 57.50 GiB reserved in total by PyTorch)",
         Form.DEVICE, Cause.FRAGMENTATION, 5 * GIB),
        ("RuntimeError: MPS backend out of memory (MPS allocated: 15.00 GB, other allocations: 11.50 GB, max "
         "allowed: 27.00 "
         "GB). Tried to allocate 1.00 GB on private pool.", Form.MPS, Cause.LIMIT, GIB),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.", Form.PLAIN,
         Cause.SINGLE_REQUEST, 1 << 60),
        ("torch.OutOfMemoryError: Allocation on device \nGot an OOM, unloading all loaded models.", Form.PLAIN,
         Cause.UNKNOWN, None),
        ("Error out of memory at line 380 in file /opt/bitsandbytes/csrc/pythonInterface.c", Form.LIBRARY,
         Cause.OUTSIDE_ALLOCATOR, None),
        ("misc/alloc.h:178 NCCL WARN Failed to CUDA calloc async 608 bytes", Form.NCCL, Cause.OUTSIDE_ALLOCATOR, 608),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.", Form.FRAMEWORK, Cause.UNKNOWN,
         16 * GIB),
        ("ValueError: No available memory for the cache blocks. Try increasing "
         "`gpu_memory_utilization`", Form.FRAMEWORK,
         Cause.LIMIT, None),
        ("ValueError: Free memory on device cuda:0 (3.5/23.5 GiB) on startup is less than desired GPU memory "
         "utilization "
         "(0.9, 21.15 GiB).", Form.FRAMEWORK, Cause.OTHER_PROCESS, 21 * GIB + 15 * GIB // 100),
    ],
)  # fmt: skip
def test_other_devices_and_frameworks_are_read_too(text: str, form: Form, cause: Cause, asked: int | None) -> None:
    (failure,) = find_messages(text)

    assert (failure.form, judge(failure).cause, failure.tried_bytes) == (form, cause, asked)
    assert find_host_failures(text) == []


def test_torch_counts_the_cache_apart_before_1_4_and_together_since() -> None:
    from torch_messages import cached

    (before,) = find_messages(cached({**FIGURES, "cached": "8.00 GiB"}))
    (since,) = find_messages(reserved({**FIGURES, "reserved": "78.00 GiB"}))

    assert before.reserved_bytes == since.reserved_bytes == 78 * GIB


def test_the_misspelled_capacity_of_torch_2_1_is_its_mark() -> None:
    (failure,) = find_messages(processes({**FIGURES, "unallocated": "20.00 MiB"}))

    assert (failure.form, failure.unallocated_bytes) == (Form.PROCESSES, 20 * MIB)
