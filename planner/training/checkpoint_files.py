"""Where a step's checkpoints are written: into a folder of their own, which is gone when they are."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import nn


class CheckpointFiles(Protocol):
    """The files of one checkpoint; a context, at whose end they are given up."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def save(self, state: dict[str, Any]) -> None:
        """As torch.save writes a state dict."""

    def save_pretrained(self, model: nn.Module, state: dict[str, Any] | None) -> None:
        """As transformers writes a model; `state` is its state dict, where it was gathered."""

    def writer(self) -> Any:
        """A StorageWriter of torch.distributed.checkpoint for what lies on the device."""

    def background_writer(self) -> Any:
        """One for a thread, and for what was staged on the host."""

    def hand_over(self) -> Callable[[], None]:
        """The files stay beyond the end of the context, until what is returned is called."""


class TemporaryFiles:
    """Really written, and removed."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="checkpoint-")))
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def save(self, state: dict[str, Any]) -> None:
        torch.save(state, self._folder / "checkpoint.pt")

    def save_pretrained(self, model: nn.Module, state: dict[str, Any] | None) -> None:
        model.save_pretrained(self._folder, state_dict=state)  # type: ignore[operator]

    def writer(self) -> Any:
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        return FileSystemWriter(self._folder)

    def background_writer(self) -> Any:
        return self.writer()

    def hand_over(self) -> Callable[[], None]:
        return self._open.pop_all().close
