"""In the process of a job's rank: its peers, and what its phases and its memory are named."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from types import TracebackType
from typing import Any, Protocol

import torch
import torch.distributed as dist

from planner.errors import MeasureError, PlannerError
from planner.events import Category, Phase
from planner.job.code_rules import CodeRules
from planner.records import to_plain
from planner.roles.whole_training import TrainingRecorder, watch_training
from planner.runtime.garbage_collection import look_at_new_objects, pause_collection
from planner.training import absent_peers
from planner.training.models import build
from planner.truth.measuring.host_recorder import HostRecorder
from planner.truth.measuring.measure import Setting
from planner.truth.measuring.measurement_lines import most_by_category, phases_of
from planner.truth.measuring.software import device_facts, software

_QUIET = (PlannerError, torch.OutOfMemoryError)
"""Errors that the process which started this one says in its own way."""


class Counters(Protocol):
    """What follows the GPU's allocator: `rank_recorder.Recorder`, which is loaded without planner."""

    driver: Any

    def mark(self, phase: str, iteration: int) -> None:
        """A phase begins."""


def begin(counters: Counters, written: Mapping[str, Any]) -> JobRank:
    """Makes this process the rank. Raises MeasureError where there is no such device, or no such rank."""
    rank = JobRank(counters, Setting(**{**written, "code": CodeRules(**written["code"])}))
    rank.begin()
    return rank


@contextmanager
def recorded(recorder: TrainingRecorder, device_type: str, *, by_deepspeed: bool = False) -> Iterator[None]:
    """Inside, the recorder hears of a program on this type of device. Cyclic garbage is collected where the program
    says so, and after the steps of one that names no phase, so that frees come at the same places in every run."""
    engines: Any = nullcontext()
    if by_deepspeed:
        from planner.roles.deepspeed import watch_engines

        engines = watch_engines(recorder)
    with look_at_new_objects(), pause_collection(), watch_training(recorder, device_type), engines:
        recorder.mark(Phase.LOAD, 0)
        yield


class JobRank:
    """From the import of torch to the end of the process."""

    def __init__(self, counters: Counters, setting: Setting) -> None:
        self._setting, self._counters = setting, counters
        self._host = HostRecorder() if setting.device == "cpu" else None
        self._named = NamedMemory(counters)
        self._watching, self._peers = ExitStack(), ExitStack()

    def begin(self) -> None:
        setting, host = self._setting, self._host
        sys.excepthook = _say_others
        self._counters.driver.is_alone = setting.is_alone
        build.allow(setting.code)
        if host is None and not torch.cuda.is_available():
            raise MeasureError("there is no CUDA device that this torch can use", remedy="measure with --device cpu")
        if setting.peers == "absent" or (setting.peers == "none" and setting.by_deepspeed):
            self._peers.enter_context(absent_peers.join(setting.rank, setting.world_size))
        self._peers.enter_context(absent_peers.take_every_step())
        if host is not None:
            torch.set_num_threads(1)
            # oneDNN lays tensors out by processor, and no plan says how.
            torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
            self._watching.enter_context(host.profile())
            self._watching.callback(gc.collect)
        watched = recorded(host or self._named, setting.device, by_deepspeed=setting.by_deepspeed)
        self._watching.enter_context(watched)

    def figures(self, error: BaseException | None) -> dict[str, Any]:
        """What `rank_recorder` does not know; the watching is over."""
        self._watching.close()
        known = {"software": software(), "categories": self._named.categories()}
        if self._host is None or error is not None:
            return known
        recorded = self._host.build_recording()
        device = {
            "facts": to_plain(device_facts(torch.device("cpu"))),
            "phases": [to_plain(phase) for phase in phases_of(recorded.events)],
            "memory_stats": {},
        }
        truth = {"runs": 1, "agreeing": 1, "net_bytes": recorded.net_bytes, "live_bytes": recorded.live_bytes}
        return known | {"devices": [device], "categories": most_by_category(recorded.events), "truth": truth}

    def leave(self, error: BaseException | None) -> None:
        """Nobody leaves while others are at work: a peer that is gone breaks their last collective. One that failed
        tells it at once."""
        with suppress(Exception):
            if self._setting.peers == "present" and error is None:
                dist.barrier()
            self._peers.close()


class NamedMemory:
    """The storages on a GPU that were given roles."""

    def __init__(self, counters: Counters) -> None:
        self.mark = counters.mark
        self._named: dict[tuple[Category, str], tuple[int, int]] = {}

    def assign(self, tensor: torch.Tensor, category: Category, name: str = "") -> None:
        local = getattr(tensor, "_local_tensor", tensor)
        if local.device.type == "cuda":
            storage = local.untyped_storage()
            self._named[(category, name)] = (storage.data_ptr(), storage.nbytes())

    @contextmanager
    def region(self, category: Category, name: str = "") -> Iterator[None]:  # noqa: ARG002
        yield

    def categories(self) -> dict[str, int]:
        """Bytes of the storages that were named, each counted once; those of gradients are of their last set."""
        storages: dict[Category, dict[int, int]] = {}
        for (category, _), (address, size) in self._named.items():
            storages.setdefault(category, {})[address] = size
        return {category.value: sum(sizes.values()) for category, sizes in sorted(storages.items())}


def _say_others(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, _QUIET):
        sys.__excepthook__(kind, error, trace)
