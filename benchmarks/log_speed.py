"""Processor seconds a MB that `planner explain` takes to read logs of several shapes and sizes.

Run: python benchmarks/log_speed.py [SHAPE ...]

No shape but `failures`, `kills` and `words` has anything to explain: most of a log has not, wherever its end stands.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator

from planner.errors import PlannerError
from planner.truth.failures.explanation import explain

SIZES = (256 * 1024, 1_000_000, 4_000_000)
_RANDOM = random.Random(1)


def digits() -> Iterator[str]:
    yield "".join(_RANDOM.choices("0123456789", k=1000))


def digit_lines() -> Iterator[str]:
    while True:
        yield " ".join(str(_RANDOM.randrange(10**6)) for _ in range(10)) + "\n"


def long_lines() -> Iterator[str]:
    while True:
        yield "the loss of this step was 0.25 and memory is 12.5 GiB of 80 GiB; " * 1000 + "\n"


def brackets() -> Iterator[str]:
    while True:
        yield "(" * 500 + "[" * 500 + "{" * 500 + '"' * 500


def training() -> Iterator[str]:
    for step in itertools.count():
        yield (
            f"2026-01-02 03:04:{step % 60:02}.123 [rank{step % 8}]: INFO trainer.py:88 step {step} loss "
            f"{_RANDOM.random():.4f} lr 1.2e-05 mem 61.25GiB(77.4%) tokens/s 12,345 mfu 41.2%\n"
        )
        if step % 50 == 0:
            yield (
                "[rank0]: Traceback (most recent call last):\n"
                + "".join(
                    f'[rank0]:   File "/job/model_{layer}.py", line {layer}, in forward\n[rank0]:     up(x)\n'
                    for layer in range(20)
                )
                + "[rank0]: ValueError: exit code 1, retrying with the next batch\n"
            )


def json_lines() -> Iterator[str]:
    for step in itertools.count():
        log = f"step {step}\n\tallocated {_RANDOM.randrange(10**10)} bytes\n\x1b[32mok\x1b[0m " + "a word " * 20
        yield json.dumps({"time": f"2026-01-02T03:04:05.{step:09}Z", "stream": "stdout", "log": log}) + "\n"


def progress() -> Iterator[str]:
    for step in itertools.count():
        share = step % 100
        drawn = "█" * (share // 10) + " " * (10 - share // 10)
        yield f"\rEpoch 1:  {share}%|{drawn}| {step}/99999 [00:08<00:24,  8.08it/s]"


def short_lines() -> Iterator[str]:
    while True:
        yield f"{_RANDOM.randrange(1000)}\n"


def failures() -> Iterator[str]:
    """Each rank and request another one."""
    for number in itertools.count():
        yield (
            f"[rank{number % 512}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {number % 90 + 2}.00 "
            f"GiB. GPU {number % 8} has a total capacity of 79.00 GiB of which 1.00 GiB is free. Process {number} has "
            "0.25 GiB memory in use. Including non-PyTorch memory, this process has 77.50 GiB memory in use. Of the "
            "allocated memory 76.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.\n"
        )


def kills() -> Iterator[str]:
    for number in itertools.count():
        yield (
            f"[7063.{number}] Memory cgroup out of memory: Killed process {number} (python3) total-vm:3149468kB, "
            f"anon-rss:{number}kB, file-rss:100000kB, shmem-rss:92kB, UID:0 pgtables:1372kB oom_score_adj:986\n"
            f"srun: error: node{number}: task {number}: Killed\nfailed (exitcode: -9) local_rank: {number}\n"
        )


def words() -> Iterator[str]:
    """What rules look for, and no sentence of theirs."""
    pieces = ("out of memory", "oom", "killed", "137", "cuda", "error", "failed", "alloc", "memory", "exit code", "job")
    while True:
        yield " ".join(_RANDOM.choices(pieces, k=12)) + "\n"


SHAPES: dict[str, Callable[[], Iterator[str]]] = {
    shape.__name__: shape
    for shape in (
        digits, digit_lines, long_lines, brackets, training, json_lines, progress, short_lines, failures, kills, words,
    )
}  # fmt: skip


def text_of(shape: str, size: int) -> str:
    """A log of that shape with `size` characters."""
    pieces, length = [], 0
    while length < size:
        for piece in SHAPES[shape]():
            pieces.append(piece)
            length += len(piece)
            if length >= size:
                break
    return "".join(pieces)[:size]


def measure(text: str) -> float:
    """Processor seconds a MB."""
    began = time.process_time()
    with contextlib.suppress(PlannerError):
        explain(text)
    return (time.process_time() - began) / len(text) * 1e6


def main() -> None:
    print("| shape | " + " | ".join(f"{size:,}" for size in SIZES) + " |")
    print("|---|" + "---:|" * len(SIZES))
    for shape in sys.argv[1:] or SHAPES:
        found = [measure(text_of(shape, size)) for size in SIZES]
        print(f"| {shape} | " + " | ".join(f"{seconds:.3f}" for seconds in found) + " |", flush=True)


if __name__ == "__main__":
    main()
