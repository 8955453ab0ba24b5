"""Three lines in training code that report what memory its rank takes: a plain loop, transformers' Trainer, Lightning.

    with report_memory(file="memory.jsonl") as memory:  # a plain loop; memory.step() ends each iteration
    Trainer(..., callbacks=[trainer_callback()])
    lightning.Trainer(..., callbacks=[lightning_callback()])

It only reads: no counter is reset, nothing is allocated, no kernel is waited for. Reports leave in a thread of their
own, and what goes wrong here is one line in the log, never an exception in the training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from planner.truth.measuring.memory_report import MemoryReport, Settings


def report_memory(**settings: Any) -> MemoryReport:
    """For a plain loop: a context manager around it; the arguments are those of :class:`Settings`.

    Raises TypeError for an argument that is none of them.
    """
    return MemoryReport(Settings(**settings))


def trainer_callback(**settings: Any) -> Any:
    """For transformers' Trainer: a TrainerCallback. Raises TypeError as :func:`report_memory`."""
    return _make_callback("trainer", Settings(**settings))


def lightning_callback(**settings: Any) -> Any:
    """For Lightning's Trainer: a Callback of `lightning` or `pytorch_lightning`. Raises as :func:`report_memory`."""
    return _make_callback("lightning", Settings(**settings))


class _Hooks:
    """What both frameworks' callbacks have: the report, and a way through pickle."""

    framework = ""

    def __init__(self, settings: Settings) -> None:
        self.memory = MemoryReport(settings)
        self._settings = settings

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, Settings]]:
        return _make_callback, (self.framework, self._settings)


class _NullHooks:
    """In place of a framework's base class that is not there: any other hook that is asked for does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_") or name in ("setup", "teardown"):
            return lambda *_, **__: None
        raise AttributeError(name)


class _TrainerHooks(_Hooks):
    """In the Trainer's order: begin, (step begin, [substep end], optimizer step, step end, [evaluate]), end.

    `on_evaluate` comes after an evaluation, and none before it: what ran since the step's end is the evaluation.
    """

    framework = "trainer"

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.memory.begin()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.memory.after("step")

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.memory.after("optimizer_step")

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.memory.step()

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        self.memory.evaluated()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.memory.end()


class _LightningHooks(_Hooks):
    """An iteration ends when `trainer.global_step` has moved: with accumulated gradients not at each batch."""

    framework = "lightning"
    _steps = 0

    def on_fit_start(self, *_: Any) -> None:
        self.memory.begin()

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self._steps = getattr(trainer, "global_step", 0)

    def on_before_backward(self, *_: Any) -> None:
        self.memory.after("forward")

    def on_after_backward(self, *_: Any) -> None:
        self.memory.after("backward")

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if getattr(trainer, "global_step", self._steps + 1) == self._steps:
            return
        self.memory.after("optimizer_step")
        self.memory.step()

    def on_validation_start(self, *_: Any) -> None:
        self.memory.evaluation_begins()

    def on_validation_end(self, *_: Any) -> None:
        self.memory.evaluated()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException, *_: Any) -> None:  # noqa: ARG002
        self.memory.end(exception)

    def on_fit_end(self, *_: Any) -> None:
        self.memory.end()


_BASES = {
    "trainer": (_TrainerHooks, ("transformers.trainer_callback:TrainerCallback",)),
    "lightning": (_LightningHooks, ("lightning.pytorch:Callback", "pytorch_lightning:Callback")),
}


@functools.cache
def _class_for(framework: str) -> type[_Hooks]:
    """The hooks on top of the framework's own base class, where that can be imported: it may look at the type."""
    hooks, paths = _BASES[framework]
    bases = []
    for path in paths:
        module, _, name = path.partition(":")
        with suppress(Exception):  # not installed, or broken: the hooks are all that is needed
            bases.append(getattr(import_module(module), name))
    return type("MemoryCallback", (hooks, *(bases or [_NullHooks])), {})


def _make_callback(framework: str, settings: Settings) -> Any:
    return _class_for(framework)(settings)
