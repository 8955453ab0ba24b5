"""Puts tensors of the device to rest on the host, and back: their storages give up their memory and take it again.

As verl's `offload_fsdp_model_to_cpu` and `offload_fsdp_optimizer` and their counterparts do (0.6, utils/fsdp_utils.py),
which move each tensor. Here a storage is emptied where it stands, so that views of it, such as the shards that
fully_shard keeps, need not be made anew; what the allocator sees is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from planner.host_events import HostCategory
from planner.training.host import Host


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
