"""Runs a program for real, on a device that has no memory, and prints what it holds on the host in each phase.

`python resident_phases.py PROGRAM meta ...` prints one JSON object: the growth of resident bytes by phase, the highest
of all iterations. What is copied from the device is zeros that are written: a meta tensor has no values.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook


def highest() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


class Phases:
    def __init__(self) -> None:
        self.grown: dict[str, int] = {}
        Path("/proc/self/clear_refs").write_text("5")
        self._before, self._now = highest(), "load"

    def enter(self, name: str) -> None:
        self.grown[self._now] = max(self.grown.get(self._now, 0), highest() - self._before)
        self._now = name
        Path("/proc/self/clear_refs").write_text("5")

    def begins(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def begun(*arguments: Any, **named: Any) -> Any:
            self.enter(name)
            return real(*arguments, **named)

        return begun


def copied(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full(tensor.shape, 1.0, dtype=tensor.dtype) if tensor.is_meta else tensor


def warm_up() -> None:
    layer = torch.nn.Linear(64, 64, device="meta")
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(4, 64, device="meta")).sum().backward()
    optimizer.step()
    for each in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 64))):
        del each


def main() -> None:
    sys.argv = sys.argv[1:]
    warm_up()
    phases = Phases()
    whole = None

    def forward(module: torch.nn.Module, _arguments: Any) -> None:
        nonlocal whole
        whole = whole or module
        if module is whole:
            phases.enter("forward")

    register_module_forward_pre_hook(forward)
    register_optimizer_step_pre_hook(lambda *_arguments: phases.enter("optimizer_step"))
    torch.Tensor.cpu = copied  # type: ignore[method-assign, assignment]
    torch.Tensor.backward = phases.begins("backward", torch.Tensor.backward)  # type: ignore[method-assign]
    torch.save = phases.begins("checkpoint_save", torch.save)
    torch.load = phases.begins("checkpoint_load", torch.load)
    runpy.run_path(sys.argv[0], run_name="__main__")
    phases.enter("end")
    print(json.dumps(phases.grown))


if __name__ == "__main__":
    main()
