"""Checkpoints of a traced step: gathered, copied and pickled as torch does it, and written nowhere."""

from __future__ import annotations

import io
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Self, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemWriter
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planner import upstream
from planner.host_events import HostBlock, HostCategory
from planner.tracing.host_ledger import SMALLEST_BYTES, HostLedger


class HostTensors(TorchDispatchMode):
    """Inside, every storage of the host that an operator makes, or puts behind a tensor, is held while it lives.

    Each becomes a block like `held`, of its own size.
    """

    def __init__(self, ledger: HostLedger, held: HostBlock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger, self._held = ledger, held
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(each) for each in _storages((args, kwargs))}
        found = func(*args, **(kwargs or {}))
        for each in _storages(found):
            if id(each) not in given and each not in self._known and each.nbytes() >= SMALLEST_BYTES:
                self._hold(each)
        return found

    def _hold(self, storage: torch.UntypedStorage) -> None:
        block = self._ledger.begin(replace(self._held, bytes=storage.nbytes()))
        self._known.add(storage)
        weakref.finalize(storage, self._ledger.end, block).atexit = False


def _storages(values: Any) -> list[torch.UntypedStorage]:
    """Those of the host. Of an operator on a DTensor the result is seen, and not what runs on its parts."""
    parts = (getattr(each, "_local_tensor", each) for each in tree_leaves(values))
    found = (each for each in parts if type(each) in (Tensor, Parameter) and each.device.type == "cpu")
    return [each.untyped_storage() for each in found]


_HELD = HostBlock(bytes=0, category=HostCategory.CHECKPOINT, name="saved")


class UnwrittenFiles:
    """The files of one checkpoint, of which there are none; what the host has meanwhile is written into a ledger."""

    def __init__(self, ledger: HostLedger) -> None:
        self._ledger, self._open = ledger, ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(_pinning_nothing())
        self._open.enter_context(HostTensors(self._ledger, _HELD))
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def save(self, state: dict[str, Any]) -> None:
        """torch.save copies one storage of the device after the other to the host (torch 2.13, serialization.py)."""
        storages = (each.untyped_storage() for each in _tensors(state))
        copied = max((each.nbytes() for each in storages if each.device.type == "cuda"), default=0)
        with self._ledger.hold(replace(_HELD, bytes=copied)), torch.serialization.skip_data():
            torch.save(state, cast(IO[bytes], _Nowhere()))

    def save_pretrained(self, model: nn.Module, state: dict[str, Any] | None) -> None:
        written = {"safetensors.torch:serialize_file": lambda *_arguments, **_named: None}
        with (
            tempfile.TemporaryDirectory(prefix="checkpoint-") as folder,
            upstream.patch_targets("tensors unwritten", replaced=written),
            _without_progress(),
        ):
            model.save_pretrained(folder, state_dict=state)  # type: ignore[operator]

    def writer(self) -> Any:
        return _Writer()

    def background_writer(self) -> Any:
        return _IdleWriter()

    def hand_over(self) -> Callable[[], None]:
        return lambda: None


@contextmanager
def _without_progress() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _tensors(state: Any) -> list[torch.Tensor]:
    found = (each for each in tree_leaves(state) if isinstance(each, torch.Tensor))
    return [getattr(each, "_local_tensor", each) for each in found]


@contextmanager
def _pinning_nothing() -> Iterator[None]:
    """Pinning is the driver's, which is not there."""
    replaced = {
        f"torch.cuda._pin_memory_utils:{name}": lambda *_arguments: None for name in ("pin_memory", "unpin_memory")
    }
    with upstream.patch_targets("checkpoints not pinned", replaced=replaced):
        yield


class _Nowhere(io.RawIOBase):
    """A file of which only the length is known."""

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


class _Nothing(FileSystemBase):
    """A file system that takes everything and keeps nothing."""

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:  # noqa: ARG002
        with torch.serialization.skip_data():
            yield _Nowhere()

    def concat_path(self, path: Any, suffix: str) -> Any:
        return Path(path) / suffix

    def rename(self, path: Any, new_path: Any) -> None: ...

    def init_path(self, path: Any) -> Any:
        return Path(path)

    def mkdir(self, path: Any) -> None: ...

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:  # noqa: ARG003
        return True

    def exists(self, path: Any) -> bool:  # noqa: ARG002
        return False

    def rm_file(self, path: Any) -> None: ...


class _Transforms:
    """Streams as they are: torch's own cannot be sought in, where bytes are left out."""

    def transform_save_stream(self, _write_item: Any, raw_stream: Any) -> tuple[Any, list[str]]:
        return _Unclosed(raw_stream), []


class _Unclosed:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def close(self) -> None: ...


class _Writer(FileSystemWriter):
    """torch's own writer, on a file system that keeps nothing."""

    def __init__(self) -> None:
        super().__init__("nowhere", sync_files=False)
        self.fs: Any = _Nothing()
        self.transforms: Any = _Transforms()


class _IdleWriter(_Writer):
    """For a thread that writes what was staged: no device sees it, so nothing is done."""

    def write_data(self, *_arguments: Any) -> Any:
        done: torch.futures.Future[list[Any]] = torch.futures.Future()
        done.set_result([])
        return done
