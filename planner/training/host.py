"""Host work of a step: what is taken from the data loader, and the files of its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from planner.runtime.child import temporary_folder


class CheckpointFiles:
    """The files of one checkpoint: really written, and removed at the end of the context."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._folder = Path(self._open.enter_context(temporary_folder("checkpoint-")))
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def save(self, state: dict[str, Any]) -> None:
        """As torch.save writes a state dict."""
        torch.save(state, self._folder / "checkpoint.pt")

    def save_pretrained(self, model: nn.Module, state: dict[str, Any] | None) -> None:
        """As transformers writes a model; `state` is its state dict, where it was gathered."""
        model.save_pretrained(self._folder, state_dict=state)  # type: ignore[operator]

    def writer(self) -> Any:
        """A StorageWriter of torch.distributed.checkpoint for what lies on the device."""
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        return FileSystemWriter(self._folder)

    def background_writer(self) -> Any:
        """One for a thread, and for what was staged on the host."""
        return self.writer()

    def hand_over(self) -> Callable[[], None]:
        """The files stay beyond the end of the context, until what is returned is called."""
        return self._open.pop_all().close


class HostListener(Protocol):
    """Writes down what of the host a run on paper does not see by itself."""

    def take_batch(self, tensors: Iterable[Tensor]) -> None:
        """A micro-batch of these tensors was taken from the data loader."""


_listeners: list[HostListener] = []


@contextmanager
def listening(listener: HostListener) -> Iterator[None]:
    """Inside, it hears of what is done here."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def take_batch(tensors: Iterable[Tensor]) -> None:
    """A micro-batch of these tensors was taken from the data loader."""
    for listener in _listeners:
        listener.take_batch(tensors)
