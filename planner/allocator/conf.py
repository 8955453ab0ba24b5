"""Reads `PYTORCH_ALLOC_CONF` (also `PYTORCH_CUDA_ALLOC_CONF`) as torch 2.13 does, and stricter where torch is silent.

After c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from planner.errors import AllocatorConfError
from planner.units import MIB, TIB

_LARGEST_SIZE = 2**64 - 1
"""Upstream reads whole numbers as size_t (c10/core/AllocatorConfig.h, ConfigTokenizer::toSizeT)."""
_LARGEST_SEGMENT_MB = 4 * TIB // MIB
"""No GPU has as much: upstream takes larger ones, and fails at the first allocation."""
_LONGEST_OPTION = 100
POWER_OF_TWO_INTERVALS = 16
"""Intervals of `roundup_power2_divisions`: up to 2 MiB, to 4 MiB, ..., 32 GiB and up. c10/core/AllocatorConfig.cpp."""

_WITHOUT_EFFECT = frozenset(
    {
        "pinned_use_background_threads", "pinned_use_cuda_host_register", "pinned_use_hip_host_register",
        "pinned_num_register_threads", "pinned_reserve_segment_size_mb", "pinned_free_catch_all",
        "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb",
        "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "throw_on_cudamalloc_oom",
        "graph_capture_record_stream_reuse",
    }
)  # fmt: skip
"""Host memory, locking, CUDA graphs, and when an error is raised: nothing about blocks and segments."""


@dataclass(frozen=True, slots=True)
class Conf:
    """What a conf says, each value checked by itself."""

    changes: dict[str, Any]
    """Fields of Rules and their values."""
    without_effect: tuple[str, ...]
    """Options that are understood and change nothing about device memory."""


def read_conf(conf: str) -> Conf:
    """Reads `option:value,option:value`; of an option given twice the last counts.

    Raises AllocatorConfError for unknown options, values that torch refuses, and what is not modelled.
    """
    changes: dict[str, Any] = {}
    without_effect: list[str] = []
    for option, value in read_options(conf):
        if option in _WITHOUT_EFFECT:
            without_effect.append(option)
        elif option in _READERS:
            name, read = _READERS[option]
            changes[name] = read(option, value)
        elif option != "backend":
            known = sorted({*_READERS, *_WITHOUT_EFFECT, "backend"})
            near = difflib.get_close_matches(option, known, n=2) if len(option) <= _LONGEST_OPTION else []
            remedy = f"did you mean {' or '.join(near)}?" if near else ""
            raise _fault(
                f"{option!r} is not an option of the allocator", ", ".join(sorted([*_READERS, "backend"])), remedy
            )
        elif value != "native":
            state = "not modelled" if value == "cudaMallocAsync" else "unknown"
            remedy = "leave backend out; CUDA's own pool allocator follows rules that are not public"
            raise _fault(f"backend: {value!r} is {state}", "native", remedy)
    return Conf(changes, tuple(without_effect))


def too_small(option: str, value_bytes: int, least_bytes: int) -> AllocatorConfError:
    """The fault of a size below the bound that torch sets."""
    return _fault(f"{option}: {value_bytes // MIB} is too small", f"{least_bytes // MIB} and more")


def read_options(conf: str) -> Iterator[tuple[str, str]]:
    """Option and value, split at the commas outside brackets; white space means nothing.

    Raises AllocatorConfError for an option without a value.
    """
    text = "".join(conf.split())
    depth, start = 0, 0
    for end, character in enumerate(text + ","):
        depth += (character == "[") - (character == "]")
        if character != "," or (depth > 0 and end < len(text)):
            continue
        if part := text[start:end]:
            option, colon, value = part.partition(":")
            if not colon or not value:
                raise _fault(f"{part!r} is not an option with a value", "option:value,option:value")
            yield option, value
        start = end + 1


def _megabytes(option: str, value: str) -> int:
    """At most what a size_t holds in bytes, to which upstream cuts max_split_size_mb (parseMaxSplitSize)."""
    return min(_whole_number(option, value), _LARGEST_SIZE // MIB) * MIB


def _segment_megabytes(option: str, value: str) -> int:
    megabytes = _whole_number(option, value)
    if megabytes > _LARGEST_SEGMENT_MB:
        raise _fault(f"{option}: {megabytes} is too large", f"up to {_LARGEST_SEGMENT_MB}, 4 TiB")
    return megabytes * MIB


def _whole_number(option: str, value: str) -> int:
    if not value.isascii() or not value.isdigit():
        raise _fault(f"{option}: {value!r} is not a whole number", "a whole number")
    if len(value) > len(str(_LARGEST_SIZE)) or int(value) > _LARGEST_SIZE:
        raise _fault(f"{option}: {value[:40]} is too large", f"a whole number up to {_LARGEST_SIZE}")
    return int(value)


def _flag(option: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise _fault(f"{option}: {value!r} is neither True nor False", "True, False")
    return value == "True"


def _share(option: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise _fault(f"{option}: {value!r} is not a number", "a number between 0 and 1") from None


def _threshold(option: str, value: str) -> float:
    if not 0.0 < (share := _share(option, value)) < 1.0:
        raise _fault(f"{option}: {value} is not between 0 and 1", "a number above 0 and below 1")
    return share


def _fraction(option: str, value: str) -> float:
    if not 0.0 <= (share := _share(option, value)) <= 1.0:
        raise _fault(f"{option}: {value} is not a share of the device", "a number from 0 to 1")
    return share


def _divisions(option: str, value: str) -> tuple[int, ...]:
    """One number for every interval, or `[256:1,512:2,>:4]`: megabytes where an interval starts, and its divisions.

    What lies below the first boundary gets its divisions too; `>` fills what lies above the last one.
    """
    if not value.startswith("["):
        return (_power_of_two(option, value, or_zero=False),) * POWER_OF_TWO_INTERVALS
    if not value.endswith("]"):
        raise _fault(f"{option}: the list {value!r} does not end", "[256:1,512:2,>:4]")
    divisions = [0] * POWER_OF_TWO_INTERVALS
    last: int | None = None
    for entry in filter(None, value[1:-1].split(",")):
        boundary, colon, count = entry.partition(":")
        if not colon:
            raise _fault(f"{option}: {entry!r} is not a boundary with divisions", "[256:1,512:2,>:4]")
        number = _power_of_two(option, count, or_zero=True)
        if boundary == ">":
            first = 1 if last is None else last + 1
            divisions[first:] = [number] * (POWER_OF_TWO_INTERVALS - first)
            continue
        start = _power_of_two(option, boundary, or_zero=False)
        index = min(start.bit_length() - 1, POWER_OF_TWO_INTERVALS - 1)
        if last is None:
            divisions[:index] = [number] * index
        divisions[index] = number
        last = index
    return tuple(divisions)


def _power_of_two(option: str, value: str, *, or_zero: bool) -> int:
    number = _whole_number(option, value)
    if number & (number - 1) or (number == 0 and not or_zero):
        raise _fault(
            f"{option}: {value} is not a power of two", "1, 2, 4, 8, ..." + (" or 0 for off" if or_zero else "")
        )
    return number


_READERS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "expandable_segments": ("expandable_segments", _flag),
    "max_split_size_mb": ("max_split_bytes", _megabytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _megabytes),
    "large_segment_size_mb": ("large_segment_bytes", _segment_megabytes),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _threshold),
    "per_process_memory_fraction": ("per_process_memory_fraction", _fraction),
}


def _fault(problem: str, allowed: str, remedy: str = "") -> AllocatorConfError:
    return AllocatorConfError(problem, allowed=allowed, remedy=remedy, place="PYTORCH_ALLOC_CONF")
