"""What the kernel, Slurm, Kubernetes, Ray and PyTorch say of a host that ran out of memory."""

from __future__ import annotations

import pytest

from planner.truth.failures.explanation import explain
from planner.truth.failures.host_messages import find_host_failures
from planner.truth.failures.messages import Cause
from planner.units import KIB

KERNEL = (
    "[7063.2] memory: usage 1048576kB, limit 1048576kB, failcnt 189\n"
    "[7063.3] Memory cgroup out of memory: Killed process 63214 (python3) total-vm:3149468kB, anon-rss:900000kB, "
    "file-rss:100000kB, shmem-rss:92kB, UID:0 pgtables:1372kB oom_score_adj:986\n"
)
OLD_KERNEL = (
    "Memory cgroup out of memory: Kill process 24572 (python) score 0 or sacrifice child\n"
    "Killed process 28438 (python) total-vm:20255636kB, anon-rss:466160kB, file-rss:13684kB\n"
)


def test_the_kernel_says_what_it_killed_how_much_it_held_and_the_limit() -> None:
    (found,) = find_host_failures(KERNEL)

    assert (found.said_by, found.cause, found.process, found.line) == ("kernel", Cause.HOST_LIMIT, "python3", 2)
    assert (found.resident_bytes, found.limit_bytes) == (1000092 * KIB, 1048576 * KIB)


def test_older_kernels_say_it_in_two_lines() -> None:
    (found,) = find_host_failures(OLD_KERNEL)

    assert found.resident_bytes == (466160 + 13684) * KIB


def test_a_kill_without_a_cgroup_is_the_whole_machines() -> None:
    (found,) = find_host_failures(KERNEL.replace("Memory cgroup out", "Out"))

    assert (found.cause, found.limit_bytes) == (Cause.HOST, None)


@pytest.mark.parametrize(
    ("text", "said_by", "cause"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks have been OOM "
         "Killed.", "slurm", Cause.HOST_LIMIT),
        ("slurmstepd: error: Detected 2 oom-kill event(s) in step 3756240.batch cgroup.", "slurm", Cause.HOST_LIMIT),
        ("srun: error: nid001277: tasks 1-3: Out Of Memory", "slurm", Cause.HOST_LIMIT),
        ("4711.0  train  OUT_OF_MEMORY  0:125", "slurm", Cause.HOST_LIMIT),
        ("4711.0  train  OUT_OF_ME+  0:125", "slurm", Cause.HOST_LIMIT),
        ("lastState:\n  terminated:\n    reason: OOMKilled\n", "kubernetes", Cause.HOST_LIMIT),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "ray", Cause.HOST),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB", "python", Cause.HOST),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 1024 bytes.",
         "torch", Cause.HOST),
    ],
)  # fmt: skip
def test_each_has_words_of_its_own(text: str, said_by: str, cause: Cause) -> None:
    (found,) = find_host_failures(text)

    assert (found.said_by, found.cause, found.certain) == (said_by, cause, True)


@pytest.mark.parametrize(
    "text",
    ["    exitCode: 137\n", "command terminated with exit code 137",
     "RuntimeError: DataLoader worker (pid(s) 123) is killed by signal: Killed."],
)  # fmt: skip
def test_what_is_said_of_other_ends_too_is_not_taken_for_certain(text: str) -> None:
    (found,) = find_host_failures(text)

    assert (found.cause, found.certain) == (Cause.UNKNOWN, False)


def test_a_pod_that_was_killed_for_memory_is_certain_whatever_its_exit_code() -> None:
    assert explain('{"exitCode": 137, "reason": "OOMKilled"}').cause is Cause.HOST_LIMIT


def test_a_container_of_which_docker_says_that_it_was_not_killed_is_none() -> None:
    assert find_host_failures('"State": {"OOMKilled": false, "ExitCode": 1}') == []


def test_of_a_host_and_a_gpu_what_was_said_first_is_the_cause() -> None:
    driver = "RuntimeError: CUDA error: out of memory\n"

    assert explain(KERNEL + driver).cause is Cause.HOST_LIMIT
    assert explain(driver + KERNEL).cause is Cause.OUTSIDE_ALLOCATOR


def test_a_gpu_out_of_memory_is_no_host_failure() -> None:
    assert find_host_failures("CUDA out of memory. Tried to allocate 20.00 MiB") == []
