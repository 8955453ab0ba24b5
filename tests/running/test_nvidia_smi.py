"""What a program reads of its GPUs from nvidia-smi."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from planner.tracing.program import gpu_statistics


@pytest.fixture(autouse=True)
def _two_gpus() -> Iterator[None]:
    with gpu_statistics.nvidia_smi("NVIDIA H100 80GB HBM3", 81559 << 20, 2, (9, 0)):
        yield


def ask(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_it_lists_the_gpus() -> None:
    lines = "".join(f"GPU {index}: NVIDIA H100 80GB HBM3, 81559 MiB (on paper)\n" for index in range(2))

    assert ask() == ask("-L") == (0, lines, "")


def test_it_is_asked_for_columns() -> None:
    assert ask("--query-gpu=index,name,memory.total", "--format=csv") == (
        0,
        "index, name, memory.total [MiB]\n0, NVIDIA H100 80GB HBM3, 81559 MiB\n1, NVIDIA H100 80GB HBM3, 81559 MiB\n",
        "",
    )
    assert ask("--query-gpu=compute_cap, memory.total", "--format=csv,noheader,nounits") == (
        0, "9.0, 81559\n9.0, 81559\n", "",
    )  # fmt: skip


@pytest.mark.parametrize("words", [("-q",), ("--query-gpu=memory.used", "--format=csv,noheader")])
def test_what_it_does_not_know_it_refuses(words: tuple[str, ...]) -> None:
    code, said, error = ask(*words)

    assert (code, said) == (2, "")
    assert words[0].removeprefix("--query-gpu=") in error
