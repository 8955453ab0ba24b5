"""Host work of a step: offloaded tensors, models that rest there, the folder of its checkpoints."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from planner.host_events import HostCategory
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

    def name_block(self, tensor: Tensor, category: HostCategory) -> None:
        """The memory of this tensor, which lies on the host, is for this."""


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


def _set_aside(storage: torch.UntypedStorage, category: HostCategory) -> Any:
    """What a storage of the device holds, kept on the host while the storage is empty."""
    if storage.device.type == "cpu":
        # Where a CPU stands for the device, Python's memory is the host's: it is not counted as the device's.
        return bytearray(ctypes.string_at(storage.data_ptr(), storage.nbytes()))
    kept = torch.tensor([], dtype=torch.uint8).set_(storage.cpu())
    for listener in _listeners:
        listener.name_block(kept, category)
    return kept


def _put_back(storage: torch.UntypedStorage, content: Any) -> None:
    """The storage holds again what was kept."""
    kept = content if isinstance(content, Tensor) else torch.frombuffer(content, dtype=torch.uint8)
    torch.tensor([], dtype=torch.uint8, device=storage.device).set_(storage).copy_(kept)


# As verl's `offload_fsdp_model_to_cpu` and `offload_fsdp_optimizer` and their counterparts do (0.6,
# utils/fsdp_utils.py), which move each tensor. Here a storage is emptied where it stands, so that views of it, such as
# the shards that fully_shard keeps, need not be made anew; what the allocator sees is the same.
class Resting:
    """Tensors that rest on the host at times. `find` names them each time: an optimizer's state is born in a step."""

    def __init__(self, find: Callable[[], Iterable[Tensor]], device: torch.device, category: HostCategory) -> None:
        self._find, self._device, self._category = find, device, category
        self._kept: list[tuple[torch.UntypedStorage, int, Any]] = []

    @property
    def rests(self) -> bool:
        return bool(self._kept)

    def leave(self) -> None:
        """They give the device's memory up."""
        if self._kept:
            return
        for storage in self._storages():
            size = storage.nbytes()
            self._kept.append((storage, size, _set_aside(storage, self._category)))
            storage.resize_(0)

    def come_back(self) -> None:
        """They take memory of the device again, in the order in which they left."""
        for storage, size, content in self._kept:
            storage.resize_(size)
            _put_back(storage, content)
        self._kept.clear()

    def _storages(self) -> list[torch.UntypedStorage]:
        parts = (getattr(tensor, "_local_tensor", tensor) for tensor in self._find())
        storages = [part.untyped_storage() for part in parts if part.device.type == self._device.type]
        # A storage is another Python object each time it is asked for.
        return list({storage._cdata: storage for storage in storages if storage.nbytes()}.values())
