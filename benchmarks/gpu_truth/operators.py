"""Single operators on a device: every allocation of forward and backward, in order.

An operator is data: a callable below `torch`, or one of `operator_calls`, shapes, arguments. The same runs on a GPU, on
a CPU and on the paper GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, cast

import torch

from gpu_truth.allocation_history import PaperRecorder, history_of
from gpu_truth.operator_calls import CALLS
from planner.errors import MeasureError
from planner.events import Phase
from planner.truth.measuring.measurement_lines import Levels, MeasuredPhase

_LARGEST_SMALL = 128


class Operator:
    """One entry of the matrix, ready to run on `device`. `small` shrinks every dim to at most 128."""

    def __init__(
        self,
        entry: Mapping[str, Any],
        device: torch.device,
        *,
        small: bool = False,
        paper: PaperRecorder | None = None,
    ) -> None:
        self._entry, self._device, self._small = entry, device, small
        self._paper = paper
        self._dtype = getattr(torch, entry.get("dtype", "float32"))
        torch.manual_seed(0)
        self._given = [entry["first"]] if "first" in entry else []
        self._given += [self._tensor(each) for each in entry["tensors"]]
        self._given += [self._rest(each) for each in entry.get("rest", ())]
        self._call = _callable(entry["call"])
        self._arguments = dict(entry.get("arguments", {}))

    def run(self) -> dict[str, Any]:
        """Allocations (+) and frees (-) in bytes for forward and backward, warmed up.

        The handles, workspaces and plans of a first call are not the operator's.
        """
        with self._settings():
            self._forward_and_backward(lambda _: None)
            self._forget()
            steps = self._record_steps()
        return {"entry": dict(self._entry), "device": self._device.type, **steps}

    def cold(self) -> dict[str, Any]:
        """The same for the very first run in this process, with what stays for good."""
        with self._settings():
            return self._record_steps()

    @contextmanager
    def _settings(self) -> Iterator[None]:
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = bool(self._entry.get("benchmark", False))
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before

    def _record_steps(self) -> dict[str, Any]:
        recorder = history_of(self._device, self._paper)
        with recorder:
            self._forward_and_backward(recorder.mark)
            self._forget()
        return recorder.steps()

    def _forward_and_backward(self, mark: Callable[[str], None]) -> None:
        mark("forward")
        result = self._call(*self._given, **self._arguments)
        if isinstance(result, tuple):
            result = result[0]
        mark("gradient")
        trained = [each for each in self._given if isinstance(each, torch.Tensor) and each.requires_grad]
        if not (trained and result.requires_grad):
            return
        gradient = torch.ones_like(result)
        mark("backward")
        gradients = torch.autograd.grad(result, trained, gradient, allow_unused=True)
        mark("end")
        del result, gradient, gradients

    def _forget(self) -> None:
        if self._device.type == "cuda" and self._paper is None:
            torch.cuda.synchronize(self._device)

    def _tensor(self, spec: Any) -> torch.Tensor:
        shape = spec["shape"] if isinstance(spec, Mapping) else spec
        options = spec if isinstance(spec, Mapping) else {}
        shape = self._shape(shape)
        if "integers" in options:
            return torch.randint(self._shape([options["integers"]])[0], shape, device=self._device)
        made = torch.randn(shape, dtype=self._dtype, device=self._device)
        if self._entry.get("channels_last") and made.dim() == 4:
            made = made.contiguous(memory_format=torch.channels_last)
        return made.requires_grad_(not options.get("fixed", False))

    def _rest(self, spec: Any) -> Any:
        if isinstance(spec, Mapping):
            return self._tensor(spec)
        return self._shape(spec) if isinstance(spec, list) else spec

    def _shape(self, shape: Sequence[int]) -> list[int]:
        return [min(size, _LARGEST_SMALL) if self._small else size for size in shape]


def phases_of_steps(steps: Mapping[str, Any]) -> tuple[MeasuredPhase, ...]:
    """Peaks of forward and backward above what was there before, in requested bytes."""
    now, found = 0, []
    for name, phase in (("forward", Phase.FORWARD), ("gradient", None), ("backward", Phase.BACKWARD)):
        peak = now
        for size in steps.get(name, ()):
            now += size
            peak = max(peak, now)
        if phase is not None and name in steps:
            ends = Levels(requested_bytes=now)
            found.append(MeasuredPhase(phase=phase, iteration=1, peak=Levels(requested_bytes=peak), end=ends))
    return tuple(found)


def _callable(path: str) -> Callable[..., Any]:
    if path in CALLS:
        return CALLS[path]
    try:
        found: Any = reduce(getattr, path.split("."), torch)
    except AttributeError:
        raise MeasureError(f"torch has no {path}") from None
    return cast(Callable[..., Any], found)
