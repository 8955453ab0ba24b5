"""DeepSpeed as a program has it: peers that agree, engines whose tensors are named, the memory of the paper GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import Any
from weakref import WeakSet

from planner import upstream
from planner.paper.host_memory import UntouchedHost
from planner.paper.recorder import Recorder
from planner.roles.deepspeed import ENGINE, ZERO, watch_engines
from planner.roles.recording import surrounded
from planner.upstream import checking

_COMPARISONS = tuple(
    f"{ZERO}.{module}:assert_ints_same_as_other_ranks"
    for module in ("partition_parameters", "partitioned_param_coordinator", "stage3")
)
"""Where ranks ask whether they go the same way; absent peers agree."""


@contextmanager
def watched(recorder: Recorder, pynvml: ModuleType, begin_step: Callable[[], None]) -> Iterator[None]:
    """Inside, engines are followed from when one is made or a model is divided: that the package is imported says
    nothing, libraries do so wherever it is installed. What they keep on the host they do not compute with. Engines that
    are left in the end are destroyed.

    `begin_step` is called where one of an engine begins: after torch's backward, it reduces in its own.
    """
    engines: WeakSet[Any] = WeakSet()

    def begins(*_arguments: Any, **_named: Any) -> None:
        # It frees on one stream what another uses: its cache depends on when events pass. Stage 3 waits for the third
        # last of its gathers and of its reductions, unless it has passed already (0.19.8,
        # partitioned_param_coordinator.py, stage3.py).
        recorder.waits = True

    def made(_result: None, engine: Any, *_arguments: Any, **_named: Any) -> None:
        engines.add(engine)

    def steps(*_arguments: Any, **_named: Any) -> None:
        begin_step()

    wrapped: dict[str, upstream.Wrapper] = {
        f"{ENGINE}.__init__": lambda real: surrounded(_on_untouched_host(real), before=begins, after=made),
        f"{ENGINE}.backward": _on_untouched_host,
        f"{ENGINE}.step": lambda real: surrounded(_on_untouched_host(real), before=steps),
        f"{ZERO}.partition_parameters:Init.__init__": partial(surrounded, before=begins),
    }
    # Of this run: the module keeps what it has found at its first import.
    replaced = {"deepspeed.accelerator.cuda_accelerator:pynvml": pynvml}
    checking.enforce("deepspeed")
    with (
        upstream.patch_targets("deepspeed peers", replaced=dict.fromkeys(_COMPARISONS, lambda _numbers: None)),
        watch_engines(recorder),
        upstream.patch_targets("program's deepspeed", wrapped=wrapped, replaced=replaced),
    ):
        yield
        for engine in list(engines):
            engine.destroy()


def _on_untouched_host(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        with UntouchedHost():
            return method(*arguments, **named)

    return call
