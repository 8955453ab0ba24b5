"""Keeps a program to its own process on this machine: no workers, no ranks of its own, no network."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, NoReturn

from torch.utils.data import dataloader

from planner import upstream
from planner.errors import ProgramError
from planner.tracing.program.assumptions import About, Assumptions, current_place

_HERE = ("localhost", "127.", "::1", "0.0.0.0")
_connecting: list[Callable[[str], None]] = []
_CLUSTER = ("gcs_server", "raylet")
"""Programs that Ray starts for a cluster of its own (Ray 2.60, _private/services.py)."""


@contextmanager
def kept_inside(program: str, assumptions: Assumptions, loads: Callable[[Any, Any], None]) -> Iterator[None]:
    """Inside, data is loaded in this process, and whatever leaves it is refused: processes by ProgramError, the network
    as where there is none. `loads` is told of iterators that load here, and of their loaders with workers."""

    def loading(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda loader: load_here(loader) if loader.num_workers else real(loader)

    def made_here(real: type) -> type:
        # The class of iterators with workers, which libraries name themselves; what it makes is another one.
        return type(real.__name__, (real,), {"__new__": lambda _cls, loader: load_here(loader)})

    def refuse(*_arguments: Any, **_named: Any) -> NoReturn:
        raise ProgramError(
            "the program starts processes of its own",
            allowed="a program that is one rank; workers of a DataLoader",
            remedy="let a launcher start the ranks (torchrun ... behind --), and load data in the program's process",
            place=current_place() or program,
        )

    def load_here(loader: Any) -> Any:
        assumptions.add(About.HOST, "a DataLoader's workers load in the program's own process")
        # As with `num_workers=0`; a loader refuses to have its number of workers set once it is made.
        kept = {name: loader.__dict__[name] for name in ("num_workers", "timeout")}
        loader.__dict__.update(num_workers=0, timeout=0)
        try:
            iterator = dataloader._SingleProcessDataLoaderIter(loader)
        finally:
            loader.__dict__.update(kept)
        loads(iterator, loader)
        return iterator

    replaced: dict[str, Any] = {"multiprocessing.process:BaseProcess.start": refuse, "os:fork": refuse}
    wrapped: dict[str, upstream.Wrapper] = {
        "torch.utils.data:DataLoader._get_iterator": loading,
        "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter": made_here,
        "torch.multiprocessing.spawn:spawn": _alone,
        "torch.multiprocessing:spawn": _alone,
    }
    with upstream.patch_targets("program host", replaced=replaced, wrapped=wrapped), _without_network(assumptions):
        yield


def _alone(real: Callable[..., Any]) -> Callable[..., Any]:
    """A single process that a program would start and wait for is this one."""

    def spawn(fn: Callable[..., Any], args: Any = (), nprocs: int = 1, *more: Any, **named: Any) -> Any:
        if nprocs != 1:
            return real(fn, args, nprocs, *more, **named)
        return fn(0, *args)

    return spawn


@contextmanager
def _without_network(assumptions: Assumptions) -> Iterator[None]:
    """Python's own way out is closed by an audit hook, which cannot be taken away again: it looks at a list."""

    def refuse(host: str) -> None:
        assumptions.add(About.HOST, f"there is no network: {host} was not reached")
        raise ConnectionRefusedError(f"planner run gives a program no network: {host} is not reached")

    if not _connecting:
        sys.addaudithook(_audit)
    _connecting.append(refuse)
    try:
        yield
    finally:
        _connecting.remove(refuse)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _connecting and event == "subprocess.Popen" and PurePath(str(arguments[0])).name in _CLUSTER:
        raise ProgramError(
            "the program starts a cluster of Ray, whose workers would train",
            allowed="a program that is one rank",
            remedy="run the workers' own function as a program: torchrun ... behind --",
            place=current_place(),
        )
    if not _connecting or event not in ("socket.connect", "socket.getaddrinfo"):
        return
    address = arguments[1] if event == "socket.connect" else arguments[0]
    host = address[0] if isinstance(address, tuple) and address else address
    if event == "socket.connect" and not isinstance(address, tuple):
        return  # a path: another process of this machine
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if isinstance(host, str) and host and not host.startswith(_HERE):
        _connecting[-1](host)
