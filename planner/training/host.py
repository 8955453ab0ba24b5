"""Host work of a step: offloaded tensors, models that rest there, the folder of its checkpoints."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu

from planner.host_events import HostBlock, HostCategory


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


STANDARD_DEVIATION = 0.02
"""Of the small random values that stand for trained ones."""


class Host(Protocol):
    """How a step treats the host's side of what it offloads."""

    def fill(self, parameter: Tensor) -> None:
        """Gives a parameter, on the device or on the host, small random values."""

    def select_clipped(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Those of the parameters whose gradients take part in clipping."""

    def take_result(self, tensor: Tensor) -> None:
        """Copies a result to the host, where it is of no further use here."""

    def saving_activations(self) -> AbstractContextManager[Any]:
        """Inside, what autograd saves rests on the host until its backward."""

    def hold(self, *blocks: HostBlock) -> AbstractContextManager[None]:
        """Inside, the process holds these blocks of the host's memory besides all else, in whatever phase that is."""

    def keep(self, *blocks: HostBlock) -> None:
        """From here to the end of the job the process holds these blocks."""

    def take_batch(self, tensors: Iterable[Tensor]) -> None:
        """A micro-batch of these tensors was taken from the data loader."""

    def set_aside(self, storage: torch.UntypedStorage, category: HostCategory) -> Any:
        """What a storage of the device holds, kept on the host while the storage is empty."""

    def put_back(self, storage: torch.UntypedStorage, content: Any) -> None:
        """The storage holds again what was kept."""

    def checkpoint_files(self) -> CheckpointFiles:
        """Where the next checkpoint is written."""


class RealHost:
    """Everything is done; what is held is there, and not told."""

    def fill(self, parameter: Tensor) -> None:
        parameter.normal_(0.0, STANDARD_DEVIATION)

    def select_clipped(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        return list(parameters)

    def take_result(self, tensor: Tensor) -> None:
        tensor.cpu()

    def saving_activations(self) -> AbstractContextManager[Any]:
        return save_on_cpu(pin_memory=torch.cuda.is_available(), device_type="cuda")

    def hold(self, *_blocks: HostBlock) -> AbstractContextManager[None]:
        return nullcontext()

    def keep(self, *_blocks: HostBlock) -> None: ...

    def take_batch(self, _tensors: Iterable[Tensor]) -> None: ...

    def set_aside(self, storage: torch.UntypedStorage, _category: HostCategory) -> Any:
        # Where a CPU stands for the device, Python's memory is the host's: it is not counted as the device's.
        here = storage if storage.device.type == "cpu" else storage.cpu()
        return bytearray(ctypes.string_at(here.data_ptr(), here.nbytes()))

    def put_back(self, storage: torch.UntypedStorage, content: Any) -> None:
        _bytes_of(storage).copy_(torch.frombuffer(content, dtype=torch.uint8))

    def checkpoint_files(self) -> CheckpointFiles:
        return TemporaryFiles()


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.tensor([], dtype=torch.uint8, device=storage.device).set_(storage)


# As verl's `offload_fsdp_model_to_cpu` and `offload_fsdp_optimizer` and their counterparts do (0.6,
# utils/fsdp_utils.py), which move each tensor. Here a storage is emptied where it stands, so that views of it, such as
# the shards that fully_shard keeps, need not be made anew; what the allocator sees is the same.
class Resting:
    """Tensors that rest on the host at times. `find` names them each time: an optimizer's state is born in a step."""

    def __init__(
        self, find: Callable[[], Iterable[Tensor]], device: torch.device, host: Host, category: HostCategory
    ) -> None:
        self._find, self._device, self._host, self._category = find, device, host, category
        self._kept: list[tuple[torch.UntypedStorage, int, Any]] = []

    @property
    def rests(self) -> bool:
        """Whether they are on the host now."""
        return bool(self._kept)

    def leave(self) -> None:
        """They give the device's memory up."""
        if self._kept:
            return
        for storage in self._storages():
            size = storage.nbytes()
            self._kept.append((storage, size, self._host.set_aside(storage, self._category)))
            storage.resize_(0)

    def come_back(self) -> None:
        """They take memory of the device again, in the order in which they left."""
        for storage, size, content in self._kept:
            storage.resize_(size)
            self._host.put_back(storage, content)
        self._kept.clear()

    def _storages(self) -> list[torch.UntypedStorage]:
        locals_ = (getattr(each, "_local_tensor", each) for each in self._find())
        found = [each.untyped_storage() for each in locals_ if each.device.type == self._device.type]
        # A storage is another Python object each time it is asked for.
        return list({each._cdata: each for each in found if each.nbytes()}.values())
