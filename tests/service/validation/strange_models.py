"""Models whose step does harm where it is real, and none on paper: there every tensor is on a GPU."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import torch
from torch import Tensor, nn


class Strange(nn.Module):
    """Does what its name says in the forward pass, on the CPU, in the rank that is named (or in all)."""

    def __init__(self, does: str, rank: int = -1) -> None:
        super().__init__()
        self.does, self.rank = does, rank
        self.linear = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and (self.rank < 0 or torch.distributed.get_rank() == self.rank):
            getattr(self, self.does)()
        return self.linear(x)

    def nothing(self) -> None:
        pass

    def hang(self) -> None:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # and it leaves somebody behind
        self.sleep()

    def sleep(self) -> None:
        time.sleep(600)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self) -> None:
        print("what the program says before it leaves", file=sys.stderr)
        os._exit(7)

    def lie(self) -> None:
        """Answers in the place of the process, and ends it."""
        for descriptor in range(3, 20):
            with contextlib.suppress(OSError):
                os.write(descriptor, b'{"measurement": {"schema": "planner.measurement/1", "phases": 7}}')
        os._exit(0)

    def fail(self) -> None:
        raise RuntimeError("the data\nis not there")

    def eat(self) -> None:
        held = []
        while True:
            held.append(torch.ones(16 * 2**20))
