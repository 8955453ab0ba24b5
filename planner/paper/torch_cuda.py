"""What `torch.cuda` answers while the paper GPU is there: the Python side of a CUDA build that a CPU build lacks."""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch

from planner import upstream
from planner.paper import library
from planner.paper.kernels.cpu import as_on_cpu
from planner.paper.targets import Target


class DeviceProperties:
    """An answer of `torch.cuda.get_device_properties`; attributes as torch/csrc/cuda/Module.cpp binds them.

    It stands for `torch.cuda._CudaDeviceProperties`, of which nothing can be made: a build for a CPU has an empty class
    of that name, a CUDA build one without a constructor.
    """

    def __init__(self, **properties: Any) -> None:
        vars(self).update(properties)

    def __repr__(self) -> str:
        return f"_CudaDeviceProperties({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


_TOTAL_BYTES = 1 << 46
_GENERATOR_STATE_BYTES = 16
"""Of CUDA's generator: a seed and an offset (torch 2.13, aten/src/ATen/cuda/CUDAGeneratorImpl.cpp)."""


def _device_of(device: Any) -> torch.device:
    """A device with its number; the current one if none is named."""
    named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    return named if named.index is not None else torch.device("cuda", torch.accelerator.current_device_index())


class Asked(Protocol):
    """Whoever knows what an event answers that is asked whether it is done."""

    waits: bool
    """Whether it is not: whoever asks has to wait for it. Else it is, as the host had waited for it."""


def _streams(asked: Asked) -> dict[str, Any]:
    """Streams and events on the generic ones of the device guard, which writes down who waits for whom."""

    class Stream(torch.Stream):
        def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
            if kwargs:
                return super().__new__(cls, **kwargs)
            return super().__new__(cls, device=_device_of(device), priority=priority)

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        def record_event(self, event: Any = None) -> Any:
            """As torch.cuda's own: that of torch.Stream takes no class derived from torch.Event since 2.12."""
            event = Event() if event is None else event
            event.record(self)
            return event

    class Event(torch.Event):
        def __new__(cls, enable_timing: bool = False, **_unused: Any) -> Event:
            return super().__new__(cls, device=_device_of(None), enable_timing=enable_timing)

        def elapsed_time(self, end_event: Any) -> float:  # noqa: ARG002
            return 0.0

        def record(self, stream: Any = None) -> None:
            super().record(stream or torch.accelerator.current_stream())

        def query(self) -> bool:
            return not asked.waits

    def current_stream(device: Any = None) -> Stream:
        stream = torch.accelerator.current_stream(device)
        return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)

    def default_stream(device: Any = None) -> Stream:
        return Stream(stream_id=0, device_index=_device_of(device).index, device_type=1)

    return {"Stream": Stream, "Event": Event, "current_stream": current_stream, "default_stream": default_stream}


class _StreamContext:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            self._before = torch.accelerator.current_stream()
            torch.accelerator.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            torch.accelerator.set_stream(self._before)


def _resizing(on_host: Any) -> Any:
    def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if storage.device.type == "cuda":
            library.load().paper_resize_storage(ctypes.c_void_p(storage._cdata), int(size))
        else:
            on_host(storage, size)
        return storage

    return resize


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


def _cuda_answers(target: Target, gpus: int) -> dict[str, Any]:
    native = library.load()
    state_bytes = torch.get_rng_state().nbytes if target.is_cpu else _GENERATOR_STATE_BYTES
    name = f"paper {target.arch}"
    properties = DeviceProperties(
        name=name,
        major=target.capability[0],
        minor=target.capability[1],
        total_memory=_TOTAL_BYTES,
        multi_processor_count=target.multiprocessors,
        warp_size=32,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        L2_cache_size=target.l2_cache_bytes,
        gcnArchName="",
    )
    return {
        "_lazy_init": lambda: None,
        "is_initialized": lambda: True,
        "is_available": lambda: True,
        "device_count": lambda: gpus,
        "current_device": lambda: 0,
        "set_device": lambda _device: None,
        "_exchange_device": lambda _index: 0,
        "_maybe_exchange_device": lambda _index: 0,
        "get_device_name": lambda _device=None: name,
        "get_device_capability": lambda _device=None: target.capability,
        "get_device_properties": lambda _device=None: properties,
        "is_bf16_supported": lambda *_, **__: target.is_cpu or target.capability >= (8, 0),
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda _device=None: native.paper_synchronize(),
        "empty_cache": native.paper_empty_cache,
        "stream": _StreamContext,
        "StreamContext": _StreamContext,
        "set_stream": lambda stream: torch.accelerator.set_stream(stream),
        "manual_seed": lambda _seed: None,
        "manual_seed_all": lambda _seed: None,
        # A generator's state has to survive being saved and set again, which checkpointing does.
        "get_rng_state": lambda _device="cuda": torch.zeros(state_bytes, dtype=torch.uint8),
        "set_rng_state": lambda _state, _device="cuda": None,
        "mem_get_info": lambda _device=None: (_TOTAL_BYTES, _TOTAL_BYTES),
        "memory_allocated": lambda _device=None: native.paper_allocated_bytes(),
        "max_memory_allocated": lambda _device=None: native.paper_most_allocated_bytes(),
        "memory_reserved": lambda _device=None: native.paper_allocated_bytes(),
        "max_memory_reserved": lambda _device=None: native.paper_most_allocated_bytes(),
        "reset_peak_memory_stats": lambda _device=None: None,
        "memory_stats": lambda _device=None: {},
    }


def _by_any_name(answer: Any) -> Any:
    """A function of torch.cuda is called with `device=` too: whatever an argument is called, it comes in its place."""
    if not inspect.isfunction(answer):
        return answer
    return functools.wraps(answer)(lambda *arguments, **named: answer(*arguments, *named.values()))


def _rnn_mode(name: str) -> int:
    mode = int(library.load().paper_rnn_mode(name.encode()))
    if mode < 0:
        raise ValueError(f"cuDNN has no recurrent network {name!r}")
    return mode


_OF_A_STEP = (
    "set_device", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
    "reset_peak_memory_stats", "memory_stats",
)  # fmt: skip


def answering_a_step(target: Target) -> AbstractContextManager[None]:
    """Inside, where torch's own CUDA code runs the step of a spec, a rank's device is the only one that it uses, and
    whoever asks what is allocated is told what was written down."""
    answers = _cuda_answers(target, 1)
    replaced = {f"torch.cuda:{name}": _by_any_name(answers[name]) for name in _OF_A_STEP}
    wrapped = {"torch:UntypedStorage.copy_": _copying}
    return upstream.patch_targets("cuda face of a step", replaced=replaced, wrapped=wrapped)


@contextmanager
def answering(target: Target, gpus: int, asked: Asked) -> Iterator[None]:
    """Inside, `torch.cuda` answers for `gpus` GPUs of the target architecture; afterwards all is as before.

    `asked` says whether events are done that are asked.
    """
    answers = {**_cuda_answers(target, gpus), **_streams(asked)}
    native = library.load()
    version = int(native.paper_cudnn_version())

    def allocated_bytes() -> dict[str, int]:
        return {"current": native.paper_allocated_bytes(), "peak": native.paper_most_allocated_bytes()}

    replaced = {
        **{f"torch.cuda:{name}": _by_any_name(answer) for name, answer in answers.items()},
        "torch.cuda:_CudaDeviceProperties": DeviceProperties,
        "torch._C:_accelerator_isAllocatorInitialized": lambda: True,
        "torch._C:_accelerator_getDeviceStats": lambda _device: {"allocated_bytes": {"all": allocated_bytes()}},
        "torch.cuda.nvtx:range_push": lambda _message: 0,
        "torch.cuda.nvtx:range_pop": lambda: 0,
        "torch.cuda.amp.common:amp_definitely_not_available": lambda: False,
        "torch.backends.cudnn:is_available": lambda: True,
        "torch.backends.cudnn:is_acceptable": lambda tensor: bool(tensor.is_cuda),
        "torch.backends.cudnn:version": lambda: version,
        "torch.backends.cudnn.rnn:get_cudnn_mode": _rnn_mode,
    }
    wrapped = {
        "torch:UntypedStorage.resize_": _resizing,
        "torch:UntypedStorage.copy_": _copying,
        "torch._tensor_str:_str": _text_of,
    }
    with (
        upstream.patch_targets("cuda face", replaced=replaced, wrapped=wrapped),
        as_on_cpu() if target.is_cpu else nullcontext(),
    ):
        yield
