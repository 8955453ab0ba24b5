"""The files of a step's checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

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
