"""Checkpoints of a traced step: gathered, copied and pickled as torch does it, and written nowhere."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, Self, cast

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.utils._pytree import tree_leaves

from planner import upstream
from planner.host_events import HostCategory
from planner.paper.native_records import inner_tensors
from planner.runtime.child import temporary_folder
from planner.tracing.host_ledger import SMALLEST_BYTES, HostWriter, NewStorages
from planner.training.host import CheckpointFiles


class UnwrittenFiles(CheckpointFiles):
    """The files of one checkpoint, of which there are none; what the host has meanwhile is written into a ledger."""

    def __init__(self, ledger: HostWriter) -> None:
        super().__init__()
        self._ledger = ledger

    def __enter__(self) -> Self:
        # Pinning is the driver's, which is not there.
        unpinned = {
            f"torch.cuda._pin_memory_utils:{name}": lambda *_arguments: None for name in ("pin_memory", "unpin_memory")
        }
        self._open.enter_context(upstream.patch_targets("checkpoints not pinned", replaced=unpinned))
        self._open.enter_context(NewStorages(self._hold))
        return self

    def _hold(self, storage: torch.UntypedStorage) -> None:
        if storage.nbytes() >= SMALLEST_BYTES:
            self._ledger.hold_while(storage, storage.nbytes(), HostCategory.CHECKPOINT)

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def save(self, state: dict[str, Any]) -> None:
        """torch.save copies one storage of the device after the other to the host (torch 2.13, serialization.py)."""
        leaves = (value for value in tree_leaves(state) if isinstance(value, torch.Tensor))
        tensors = (part for leaf in leaves for part in inner_tensors(leaf))
        storages = (tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cuda")
        copied = max((storage.nbytes() for storage in storages), default=0)
        with self._ledger.hold(HostCategory.CHECKPOINT, copied), torch.serialization.skip_data():
            torch.save(state, cast(IO[bytes], _Nowhere()))

    def save_pretrained(self, model: nn.Module, state: dict[str, Any] | None) -> None:
        from transformers.utils import logging

        unwritten = {"safetensors.torch:serialize_file": lambda *_arguments, **_named: None}
        shows_progress = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            with (
                temporary_folder("checkpoint-") as folder,
                upstream.patch_targets("tensors unwritten", replaced=unwritten),
            ):
                model.save_pretrained(folder, state_dict=state)  # type: ignore[operator]
        finally:
            if shows_progress:
                logging.enable_progress_bar()

    def writer(self) -> Any:
        return _Writer()

    def background_writer(self) -> Any:
        return _IdleWriter()  # no device sees what a thread writes that was staged

    def hand_over(self) -> Callable[[], None]:
        return lambda: None


class _Nowhere(io.RawIOBase):
    def __init__(self) -> None:
        super().__init__()
        self._at = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._at += len(data)
        return len(data)

    def seek(self, count: int, whence: int = io.SEEK_SET) -> int:
        self._at = count if whence == io.SEEK_SET else self._at + count
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        """Stays open: torch closes it before it asks how long it is."""


class _Nothing(FileSystem):
    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:  # noqa: ARG002
        with torch.serialization.skip_data():
            yield _Nowhere()

    def rename(self, path: Any, new_path: Any) -> None: ...

    def mkdir(self, path: Any) -> None: ...

    def exists(self, path: Any) -> bool:  # noqa: ARG002
        return False

    def rm_file(self, path: Any) -> None: ...


class _Transforms:
    """Streams as they are: torch's own cannot be sought in, where bytes are left out."""

    def transform_save_stream(self, _write_item: Any, raw_stream: Any) -> tuple[Any, list[str]]:
        return raw_stream, []


class _Writer(FileSystemWriter):
    def __init__(self) -> None:
        super().__init__("nowhere", sync_files=False)
        self.fs: Any = _Nothing()
        self.transforms: Any = _Transforms()


class _IdleWriter(_Writer):
    def write_data(self, *_arguments: Any) -> Any:
        done: torch.futures.Future[list[Any]] = torch.futures.Future()
        done.set_result([])
        return done
