"""Messages that leave open whose memory it was, whether anything failed, or why a process ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner.report.style import Style
from planner.truth.failures.causes import judge
from planner.truth.failures.explanation import explain
from planner.truth.failures.explanation_text import render
from planner.truth.failures.gpu_messages import find_messages
from planner.truth.failures.messages import Cause, Form
from planner.units import GIB, MIB

Message = Callable[..., str]
IN_A_CONTAINER = {
    "total": "14.74 GiB", "tried": "1.54 GiB", "free": "0.70 GiB", "allocated": "3.34 GiB", "unallocated": "0.06 GiB",
    "others": [(22056, "3.56 GiB"), (22047, "9.17 GiB"), (22053, "0.30 GiB"), (22050, "1.00 GiB")],
}  # fmt: skip
RAY = (
    "A worker died or was killed while executing a task by an unexpected system error. There are some potential root "
    "causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is "
    "called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors."
)


def shown(text: str) -> str:
    return " ".join(render("train.log", explain(text), Style()).split())


def test_of_processes_that_may_be_this_one_none_is_counted_beside_what_pytorch_holds(message: Message) -> None:
    (failure,) = find_messages(message(**IN_A_CONTAINER))
    judged = judge(failure)

    assert abs(sum(judged.held.values()) - int(14.74 * GIB)) < MIB
    assert "other_processes" not in judged.held
    assert judged.cause is Cause.OTHER_PROCESS  # whichever it is, 4.86 GiB are of others
    assert "which of the listed processes is this one is not said (2 hold as much" in judged.notes[0]


def test_processes_of_which_none_can_be_this_one_and_that_exceed_the_gpu_do_not_add_up(message: Message) -> None:
    (failure,) = find_messages(message(others=[(7, "20.00 GiB")]))

    assert judge(failure).contradictions == ("the processes' 97.00 GiB and what is free are more than the GPU has",)


def test_an_engine_that_does_not_start_says_what_others_hold_as_parts_of_the_gpu() -> None:
    text = "ValueError: Free memory on device (0.49/79.32 GiB) on startup is less than desired GPU memory utilization "
    text += "(0.6, 47.59 GiB)."

    assert "other processes 78.83 GiB 99.4 %" in shown(text)
    assert "free 0.49 GiB 0.6 %" in shown(text)


def test_a_gpu_of_which_an_engine_reads_no_memory_is_no_error() -> None:
    text = "Free memory on device (0.00/0.00 GiB) on startup is less than desired GPU memory utilization (0.6, 1 GiB)"

    assert find_messages(text)[0].total_bytes == 0


def test_parts_that_are_larger_than_the_gpu_have_a_bar_of_the_whole_width(message: Message) -> None:
    assert max(map(len, render("l", explain(message(pools="80000.00 GiB")), Style()).splitlines())) < 120


@pytest.mark.parametrize(
    ("text", "form", "tried"),
    [
        ('RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":995, please',
         Form.PLAIN, None),
        ('NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at '
         '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":1123', Form.PLAIN, None),
        ("[torch_memory_saver.cpp] CUresult error: 2 (out of memory)  file=csrc/core.cpp func=resume line=172",
         Form.DRIVER, None),
        ("[torch_memory_saver.cpp] CUresult error  result=2 file=csrc/torch_memory_saver.cpp func=cu_mem_create",
         Form.DRIVER, None),
        ("gpu_async_0 cuMemAllocAsync failed to allocate 4294967296 bytes: CUDA error: out of memory "
         "(CUDA_ERROR_OUT_OF_MEMORY)\n Reported by CUDA: Free memory/Total memory: 1073741824/85899345920",
         Form.FRAMEWORK, 4 * GIB),
    ],
)  # fmt: skip
def test_other_words_for_a_refused_request_are_read(text: str, form: Form, tried: int | None) -> None:
    assert [(failure.form, failure.tried_bytes) for failure in find_messages(text)] == [(form, tried)]


def test_a_call_that_failed_for_another_reason_is_not_read() -> None:
    assert find_messages("[torch_memory_saver.cpp] CUresult error  result=201 file=a.cpp func=resume line=214") == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("E1210 22:26:07.784000 13 torch/_inductor/select_algorithm.py:2691] [8/0] Runtime error during autotuning:\n",
         "\nE1210 22:26:07.784000 13 torch/_inductor/select_algorithm.py:2691] [8/0] Ignoring this choice."),
        ("Exception ", " for benchmark choice TritonTemplateCaller(a.py)"),
    ],
)  # fmt: skip
def test_what_the_program_caught_is_not_the_failure(before: str, after: str, message: Message) -> None:
    caught = before + message(tried="30.00 GiB") + after

    assert explain(caught).cause is Cause.UNKNOWN
    assert "the program caught this and went on" in shown(caught)
    assert explain(f"{caught}\n{message()}").cause is Cause.FULL


@pytest.mark.parametrize(
    "text",
    ["exitcode  : -7 (pid: 467398)", "traceback : Signal 7 (SIGBUS) received by PID 4", "exited with code 135",
     "train.sh: line 3: 41 Bus error               (core dumped) python train.py"],
)  # fmt: skip
def test_a_bus_error_is_mostly_shared_memory(text: str) -> None:
    assert "Mostly shared memory was full: /dev/shm" in shown(text)


def test_what_ray_lists_as_possible_is_not_said_to_be_the_reason() -> None:
    assert "lists what may have been the reason without saying which it was" in shown(RAY)
    assert "A process was killed" not in shown(RAY)


def test_hints_name_the_libraries_of_the_vendor_that_speaks() -> None:
    text = shown("RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)")

    assert "oneCCL" in text
    assert not [word for word in ("NCCL", "CUDA", "nvidia-smi", "cudaHostAlloc") if word in text]
