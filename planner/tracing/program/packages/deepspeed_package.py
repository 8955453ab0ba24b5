"""DeepSpeed as a program has it: peers that agree, engines whose tensors are named, the memory of the paper GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakSet

import torch

from planner import upstream
from planner.paper.recorder import Recorder
from planner.training.observers import surrounded
from planner.training.wraps import deepspeed_engine
from planner.training.wraps.deepspeed_roles import ENGINE, ZERO, observe_engines


@contextmanager
def watched(recorder: Recorder, pynvml: ModuleType, extend_backward: Callable[[], None]) -> Iterator[None]:
    """Inside, engines are followed from when one is made or a model is divided: that the package is imported says
    nothing, libraries do so wherever it is installed. Engines that are left in the end are destroyed.

    `extend_backward` is called where an engine's backward ends: it reduces after that of torch.
    """
    engines: WeakSet[Any] = WeakSet()

    def begins(*_arguments: Any, **_named: Any) -> None:
        # It frees on one stream what another uses, and waits for events: its cache depends on when those pass.
        recorder.waits = True

    def made(_result: None, engine: Any, *_arguments: Any, **_named: Any) -> None:
        engines.add(engine)

    def ended(*_arguments: Any, **_named: Any) -> None:
        extend_backward()

    wrapped = {
        f"{ENGINE}.__init__": partial(surrounded, before=begins, after=made),
        f"{ENGINE}.backward": partial(surrounded, after=ended),
        f"{ZERO}.partition_parameters:Init.__init__": partial(surrounded, before=begins),
    }
    # Of this run: the module keeps what it has found at its first import.
    replaced = {"deepspeed.accelerator.cuda_accelerator:pynvml": pynvml}
    with (
        deepspeed_engine.peers_agree(),
        observe_engines(recorder),
        upstream.patch_targets("program's deepspeed", wrapped=wrapped, replaced=replaced),
    ):
        yield
        for engine in list(engines):
            deepspeed_engine.release(engine, torch.device("cuda"))
