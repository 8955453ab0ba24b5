"""Keeps a program to itself on this machine: data is loaded in its process, ranks that it starts are absent, what else
it starts has no GPU, and there is no network."""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import popen_fork
from pathlib import PurePath
from typing import Any, NoReturn

import torch
from torch.utils.data import dataloader
from torch.utils.data._utils import worker

from planner import upstream
from planner.errors import PlannerError, ProgramError
from planner.paper import library
from planner.tracing.program.assumptions import About, Assumptions, current_place
from planner.tracing.program.started_ranks import StartedRanks, reaches_gpu

_HERE = ("localhost", "127.", "::1", "0.0.0.0")
_CLUSTER = ("gcs_server", "raylet")
"""Programs that Ray starts for a cluster of its own (Ray 2.60, _private/services.py)."""
_GPUS = "CUDA_VISIBLE_DEVICES"
_inside: list[_Outside] = []
"""Audit hooks and those of a fork cannot be taken away again: they look here."""


class _Outside:
    """What a program reaches for beyond its process."""

    def __init__(
        self, ranks: StartedRanks, assumptions: Assumptions, refuse: Callable[[PlannerError], NoReturn]
    ) -> None:
        self.ranks, self._assumptions, self._refuse = ranks, assumptions, refuse
        self._process = os.getpid()
        self._on_use = ctypes.CFUNCTYPE(None)(self._refuse_use)

    @property
    def is_here(self) -> bool:
        """Whether this is the program's own process, and no child of it."""
        return os.getpid() == self._process

    def refuse_host(self, host: str) -> NoReturn:
        self._assumptions.add(About.HOST, f"there is no network: {host} was not reached")
        raise ConnectionRefusedError(f"planner run gives a program no network: {host} is not reached")

    def enter_child(self) -> None:
        """A process was forked, which works on the host."""
        torch.set_num_threads(1)  # OpenMP's threads did not come along
        library.load().paper_on_use(self._on_use)

    def _refuse_use(self) -> None:
        self._refuse(
            ProgramError(
                "a process that the program starts for work on the host reaches the GPU",
                allowed="processes that work on the host; ranks that are started by torch.multiprocessing, by a"
                " multiprocessing.Process whose function says cuda or init_process_group, or by a launcher",
                remedy="do what needs the GPU in the program's own process, or let torchrun start it as a rank",
                place=current_place(),
            )
        )

    def start_process(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """What stands for the start of a process of multiprocessing: ranks wait until they are waited for."""

        def start(process: Any) -> None:
            if self.is_here and reaches_gpu(process):
                self.ranks.defer(process)
                return
            self._assumptions.add(
                About.HOST, "processes that the program starts work on the host, and are in no figure", current_place()
            )
            # Whatever its context says: a new interpreter would look for GPUs of this machine.
            process._Popen = popen_fork.Popen
            real(process)

        return start

    def open_command(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """What stands for `subprocess.Popen.__init__`."""
        signature = inspect.signature(real)

        @functools.wraps(real)
        def init(*arguments: Any, **named: Any) -> None:
            call = signature.bind(*arguments, **named)
            process, words = call.arguments["self"], call.arguments["args"]
            words = [words] if isinstance(words, str | bytes | os.PathLike) else list(words)
            words = [os.fsdecode(word) for word in words]
            if call.arguments.get("shell"):
                words = ["sh", "-c", *words]
            environment = {**(os.environ if call.arguments.get("env") is None else call.arguments["env"])}
            environment = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
            folder = os.path.join(os.getcwd(), os.fsdecode(call.arguments.get("cwd") or ""))
            if self.is_here and self.ranks.look_at_command(words, folder, environment):
                _stand_for(process, words)
                return
            call.arguments["env"] = {**environment, _GPUS: ""}
            real(*call.args, **call.kwargs)

        return init

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit event of Python (docs.python.org, Audit events table)."""
        if event == "subprocess.Popen" and PurePath(str(arguments[0])).name in _CLUSTER:
            raise ProgramError(
                "the program starts a cluster of Ray, whose workers would train",
                allowed="a program that is one rank",
                remedy="run the workers' own function as a program: torchrun ... behind --",
                place=current_place(),
            )
        if event in ("os.exec", "os.posix_spawn") and self.is_here:
            words, environment = arguments[1], dict(arguments[2] or os.environ)
            environment.pop(_GPUS, None)  # hidden from the command, if it is started
            visible = {_GPUS: os.environ[_GPUS]} if _GPUS in os.environ else {}
            self.ranks.look_at_command([os.fsdecode(word) for word in words], os.getcwd(), {**environment, **visible})
        if event not in ("socket.connect", "socket.getaddrinfo"):
            return
        address = arguments[1] if event == "socket.connect" else arguments[0]
        host = address[0] if isinstance(address, tuple) and address else address
        if event == "socket.connect" and not isinstance(address, tuple):
            return  # a path: another process of this machine
        if isinstance(host, bytes):
            host = host.decode(errors="replace")
        if isinstance(host, str) and host and not host.startswith(_HERE):
            self.refuse_host(host)


def _stand_for(process: Any, words: list[str]) -> None:
    """What a program sees of a rank that is not started: a process at work."""
    vars(process).update(
        args=words, pid=0, returncode=None, stdin=None, stdout=None, stderr=None, _child_created=False,
        poll=lambda: None, wait=lambda *_, **__: 0, send_signal=lambda *_: None,
        communicate=lambda *_, **__: (None, None),
    )  # fmt: skip


def _call_shell(command: str) -> int:
    """As `os.system`."""
    return subprocess.call(command, shell=True) << 8


vars(_call_shell)["__wrapped__"] = os.system  # who asks where it is defined


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    for outside in _inside:
        outside.hear(event, arguments)


def _enter_child() -> None:
    for outside in _inside:
        outside.enter_child()


@contextmanager
def kept_inside(
    ranks: StartedRanks,
    assumptions: Assumptions,
    loads: Callable[[Any, Any], None],
    refuse: Callable[[PlannerError], NoReturn],
) -> Iterator[None]:
    """Inside, data is loaded in this process, `ranks` has the ranks that the program starts, its other processes have
    no GPU, and the network is as where there is none. `loads` gets iterators that load here, and their loaders with
    workers; `refuse` ends the program from a child."""

    def loading(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda loader: load_here(loader) if loader.num_workers else real(loader)

    def made_here(real: type) -> type:
        # The class of iterators with workers, which libraries name themselves; what it makes is another one.
        return type(real.__name__, (real,), {"__new__": lambda _cls, loader: load_here(loader)})

    def load_here(loader: Any) -> Any:
        assumptions.add(About.HOST, "a DataLoader's workers load in the program's own process")
        # As with `num_workers=0`; a loader refuses to have its number of workers set once it is made.
        kept = {name: loader.__dict__[name] for name in ("num_workers", "timeout")}
        loader.__dict__.update(num_workers=0, timeout=0)
        try:
            with _as_worker(loader):
                iterator = dataloader._SingleProcessDataLoaderIter(loader)
        finally:
            loader.__dict__.update(kept)
        iterator._dataset_fetcher.fetch = _as_worker(loader)(iterator._dataset_fetcher.fetch)
        loads(iterator, loader)
        return iterator

    outside = _Outside(ranks, assumptions, refuse)
    replaced: dict[str, Any] = {
        "os:system": _call_shell,
        "os:putenv": _hiding(os.putenv),
        "os:unsetenv": _hiding(os.unsetenv),
    }
    wrapped: dict[str, upstream.Wrapper] = {
        "torch.utils.data:DataLoader._get_iterator": loading,
        "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter": made_here,
        **{f"torch.multiprocessing{module}:{name}": ranks.spawn
           for module in (".spawn", "") for name in ("spawn", "start_processes")},
        "multiprocessing.process:BaseProcess.start": outside.start_process,
        "subprocess:Popen.__init__": outside.open_command,
        **{f"os:{name}": _without_gpus for name in ("execve", "posix_spawn", "posix_spawnp")},
    }  # fmt: skip
    if not _inside:
        sys.addaudithook(_audit)
        os.register_at_fork(after_in_child=_enter_child)
    _inside.append(outside)
    try:
        with upstream.patch_targets("program host", replaced=replaced, wrapped=wrapped):
            yield
    finally:
        _inside.remove(outside)


@contextmanager
def _as_worker(loader: Any) -> Iterator[None]:
    """Inside, datasets and what collates their rows find themselves in a worker: the only one, which loads all."""
    worker._worker_info = worker.WorkerInfo(id=0, num_workers=1, seed=torch.initial_seed(), dataset=loader.dataset)
    try:
        yield
    finally:
        worker._worker_info = None


def _without_gpus(real: Callable[..., Any]) -> Callable[..., Any]:
    def start(path: Any, words: Any, environment: Mapping[Any, Any], **options: Any) -> Any:
        hidden = {name: value for name, value in environment.items() if os.fsdecode(name) != _GPUS}
        return real(path, words, {**hidden, _GPUS: ""}, **options)

    return start


def _hiding(real: Callable[..., None]) -> Callable[..., None]:
    def change(name: Any, *value: Any) -> None:
        if os.fsdecode(name) != _GPUS:
            real(name, *value)

    return change
