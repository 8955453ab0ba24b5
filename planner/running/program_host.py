"""Keeps a program to its own process on this machine: no workers, no ranks of its own, no network."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from torch.utils.data import dataloader

from planner import upstream
from planner.errors import ProgramError
from planner.running.assumptions import About, Assumptions

_HERE = ("localhost", "127.", "::1", "0.0.0.0")
_connecting: list[Callable[[str], None]] = []


@contextmanager
def kept_inside(program: str, assumptions: Assumptions) -> Iterator[None]:
    """Inside, data is loaded in this process, and whatever leaves it is refused: processes by ProgramError, the network
    as where there is none."""

    def loading(real: Callable[..., Any]) -> Callable[..., Any]:
        def iterator(loader: Any) -> Any:
            if loader.num_workers == 0:
                return real(loader)
            assumptions.add(About.HOST, "a DataLoader's workers load in the program's own process")
            return _in_this_process(loader)

        return iterator

    def refuse(*_arguments: Any, **_named: Any) -> NoReturn:
        raise ProgramError(
            "the program starts processes of its own",
            allowed="a program that is one rank; workers of a DataLoader",
            remedy="let a launcher start the ranks (torchrun ... behind --), and load data in the program's process",
            place=program,
        )

    replaced = {"multiprocessing.process:BaseProcess.start": refuse, "os:fork": refuse}
    wrapped = {"torch.utils.data:DataLoader._get_iterator": loading}
    with upstream.patch_targets("program host", replaced=replaced, wrapped=wrapped), _without_network(assumptions):
        yield


def _in_this_process(loader: Any) -> Any:
    """As with `num_workers=0`; a loader refuses to have its number of workers set once it is made."""
    kept = {name: loader.__dict__[name] for name in ("num_workers", "timeout")}
    loader.__dict__.update(num_workers=0, timeout=0)
    try:
        return dataloader._SingleProcessDataLoaderIter(loader)
    finally:
        loader.__dict__.update(kept)


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
