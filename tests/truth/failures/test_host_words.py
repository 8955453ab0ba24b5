"""What the kernel, Slurm, Kubernetes, Ray and PyTorch say of a host that ran out of memory."""

from __future__ import annotations

import pytest

from planner.report.style import Style
from planner.truth.failures.explanation import explain
from planner.truth.failures.explanation_text import render
from planner.truth.failures.host_messages import find_host_failures
from planner.truth.failures.messages import Cause
from planner.units import GIB, KIB

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
        ("slurmstepd: error: Exceeded job memory limit", "slurm", Cause.HOST_LIMIT),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", "lsf", Cause.HOST_LIMIT),
        ("The node was low on resource: memory.", "kubernetes", Cause.HOST),
        ("Warning  SystemOOM  kubelet  System OOM encountered, victim process: python, pid: "
         "4711", "kernel", Cause.HOST),
        ("(raylet) node_manager.cc:3064: 3 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers "
         "crashed",
         "ray", Cause.HOST),
        ("ray.exceptions.ObjectStoreFullError: Failed to put object 00f0 in object store", "ray", Cause.HOST_LIMIT),
        ("java.lang.OutOfMemoryError: Java heap space", "java", Cause.HOST_LIMIT),
        ("OutOfMemoryError: Container killed due to memory usage", "kubernetes", Cause.HOST_LIMIT),
        ("    self.pid = os.fork()\nOSError: [Errno 12] Cannot allocate memory", "python", Cause.HOST),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "c++", Cause.HOST),
        ("OSError: [WinError 1455] The paging file is too small for this operation to complete", "windows", Cause.HOST),
        ("RuntimeError: unable to write to file </torch_17_4>: No space left on device "
         "(28)", "torch", Cause.HOST_LIMIT),
        ("NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Xy1 (size 9637888)\n"
         "NCCL INFO posix_fallocate failed : No space left on device", "nccl", Cause.HOST_LIMIT),
        ("Your session crashed after using all available RAM.", "notebook", Cause.HOST),
    ],
)  # fmt: skip
def test_each_has_words_of_its_own(text: str, said_by: str, cause: Cause) -> None:
    (found,) = find_host_failures(text)

    assert (found.said_by, found.cause, found.certain) == (said_by, cause, True)


@pytest.mark.parametrize(
    "text",
    ["    exitCode: 137\n", "command terminated with exit code 137", "Exited (137) 3 minutes ago",
     "RuntimeError: DataLoader worker (pid(s) 123) is killed by signal: Killed.",
     "failed (exitcode: -9) local_rank: 3 (pid: 214) of binary: python", "process 7 exits with return code = -9",
     "subprocess.CalledProcessError: Command '['train.py']' returned non-zero exit status 137.",
     "subprocess.CalledProcessError: Command '['train.py']' died with <Signals.SIGKILL: 9>.",
     "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
     "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).",
     "srun: error: node17: task 3: Killed", "train.sh: line 14: 3103923 Killed                  python train.py",
     "Loading:  25%|##5       | 1/4 [00:08<00:24,  8.08s/it]Killed", "Killed", "zsh: killed     python train.py",
     "slurmstepd: error: Step 12.0 hit memory limit at least once during execution."],
)  # fmt: skip
def test_what_is_said_of_other_ends_too_is_not_taken_for_certain(text: str) -> None:
    (found,) = find_host_failures(text)

    assert (found.cause, found.certain) == (Cause.UNKNOWN, False)


@pytest.mark.parametrize(
    "text",
    ["Sending process 203613 closing signal SIGTERM", "failed (exitcode: -11) local_rank: 0", "exit code: 1", "exit "
    "code 1370",
     "Unable to shutdown process 12 via SIGTERM, forcefully exiting via SIGKILL", "Killing subprocess 44781",
     "The node was low on resource: ephemeral-storage.", "OSError: [Errno 28] No space left on device",
     "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376"],
)  # fmt: skip
def test_what_is_said_of_something_else_is_not_read(text: str) -> None:
    assert find_host_failures(text) == []


@pytest.mark.parametrize(
    ("text", "said_by", "used", "limit"),
    [
        ("slurmstepd: error: Job 5018 exceeded memory limit (8420352 > 8388608), being killed", "slurm",
         8420352 * KIB, 8388608 * KIB),
        ("=>> PBS: job killed: mem 67110912kb exceeded limit 67108864kb", "pbs", 67110912 * KIB, 67108864 * KIB),
        ("job 12 exceeds job hard limit \"h_vmem\" of queue \"gpu.q@n1\" (8.50G > limit:8.00G) - sending "
         "SIGKILL", "sge",
         17 * GIB // 2, 8 * GIB),
        ("Container [pid=7] is running beyond physical memory limits. Current usage: 2.5 GB of 2 GB physical memory "
         "used",
         "yarn", 5 * GIB // 2, 2 * GIB),
        ("Container trainer was using 61440Mi, request is 0", "", None, None),
        ("The node was low on resource: memory. Threshold quantity: 100Mi, available: 40Mi. Container trainer was "
         "using "
         "61440Mi, request is 0, has larger consumption of memory.", "kubernetes", 60 * GIB, None),
        ("Memory on the node (IP: 10.0.0.5, ID: ab) where the task (task ID: 1, name=train) was running was 57.50GB "
         "/ 60GB "
         "(0.958), which exceeds the memory usage threshold of 0.95.", "ray", 115 * GIB // 2, 60 * GIB),
    ],
)  # fmt: skip
def test_what_was_used_and_the_limit_are_read(text: str, said_by: str, used: int | None, limit: int | None) -> None:
    failures = find_host_failures(text)

    read = [(failure.said_by, failure.resident_bytes, failure.limit_bytes) for failure in failures]
    assert read == ([(said_by, used, limit)] if said_by else [])


def test_a_kill_of_which_nothing_says_memory_is_told_with_where_to_look() -> None:
    shown = " ".join(render("train.log", explain("failed (exitcode: -9) local_rank: 0"), Style()).split())

    assert "A process was killed (SIGKILL, exit codes 137 and -9). Mostly the host's memory ran out" in shown
    assert "dmesg -T" in shown


def test_the_kernels_killer_alone_says_that_memory_ran_out_and_not_of_what() -> None:
    shown = render("dmesg", explain("[7063.1] python3 invoked oom-killer: gfp_mask=0xcc0, order=0"), Style())

    assert "The host's memory ran out: of the machine, or of a limit, is not said." in " ".join(shown.split())


def test_a_kill_for_time_is_not_said_to_be_for_memory() -> None:
    text = (
        "slurmstepd: error: *** STEP 7.0 CANCELLED AT 2026-01-01 DUE TO TIME LIMIT ***\nsrun: error: n1: task 0: Killed"
    )

    assert 'gives a reason other than memory: "DUE TO TIME LIMIT"' in " ".join(
        render("l", explain(text), Style()).split()
    )


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
