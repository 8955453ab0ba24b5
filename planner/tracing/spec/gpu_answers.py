"""What a spec's step finds in `torch.cuda` other than the CUDA runtime on paper says it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from planner import upstream
from planner.paper import library

_OF_ANY_ACCELERATOR = ("memory_allocated", "max_memory_allocated")


def answering() -> AbstractContextManager[None]:
    """Inside, a rank's device is the only one that it uses, and whoever asks what is allocated is told what was
    recorded: an allocator that is put in the place of torch's own keeps no statistics."""
    native = library.load()
    answers: dict[str, Any] = {
        "set_device": lambda _device=None: None,
        "memory_allocated": lambda _device=None: native.paper_allocated_bytes(),
        "max_memory_allocated": lambda _device=None: native.paper_most_allocated_bytes(),
        "memory_reserved": lambda _device=None: native.paper_allocated_bytes(),
        "max_memory_reserved": lambda _device=None: native.paper_most_allocated_bytes(),
        "reset_peak_memory_stats": lambda _device=None: None,
        "memory_stats": lambda _device=None: {},
    }
    # A function of torch.cuda is called with `device=` too: whatever an argument is called, it comes in its place.
    replaced = {
        f"torch.cuda:{name}": lambda *arguments, answer=answer, **named: answer(*arguments, *named.values())
        for name, answer in answers.items()
    }
    replaced |= {f"torch.accelerator:{name}": replaced[f"torch.cuda:{name}"] for name in _OF_ANY_ACCELERATOR}
    wrapped = {"torch:UntypedStorage.copy_": _copying, "torch._tensor_str:_str": _text_of}
    return upstream.patch_targets("cuda face of a step", replaced=replaced, wrapped=wrapped)


def _copying(on_host: Any) -> Any:
    def copy(storage: torch.UntypedStorage, source: torch.UntypedStorage, non_blocking: bool = False) -> Any:
        if source.device.type != "cuda" or storage.device.type != "cpu":
            return on_host(storage, source, non_blocking)
        # A storage has no dtype: whole bytes go to the host, as zeros, and nobody reads them as numbers.
        library.load().paper_write_zeros(storage._cdata)
        return storage

    return copy


def _text_of(on_host: Any) -> Any:
    def text(tensor: torch.Tensor, *, tensor_contents: str | None = None) -> str:
        """Whoever logs a tensor reads its values; those of the paper GPU are not there."""
        if tensor.device.type != "cuda":
            return str(on_host(tensor, tensor_contents=tensor_contents))
        return f"tensor(..., device='{tensor.device}', size={tuple(tensor.shape)}, dtype={tensor.dtype})"

    return text
