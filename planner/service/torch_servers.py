"""Keeps the fork servers of a tracing worker: its own torch's, and those of releases that were asked for lately."""

from __future__ import annotations

from collections import OrderedDict

from planner.environments.brought_code import bring_code
from planner.runtime.fork_server import ForkServer, ServerLostError
from planner.searching.preload import PRELOAD
from planner.service.service_errors import WorkerLostError
from planner.service.torch_versions import OfferedTorch, TorchVersions

MOST_OTHERS = 2
"""Besides that of the worker's own torch: each takes half a GiB."""


class TorchServers:
    """One fork server for each release of torch, started when it is first asked for; the one that was asked for longest
    ago goes. For one thread."""

    def __init__(self, torches: TorchVersions) -> None:
        self._torches = torches
        self._own = ForkServer(PRELOAD)
        self._others: OrderedDict[str, ForkServer] = OrderedDict()

    def start(self) -> None:
        """That of the worker's own torch. Raises ServerLostError."""
        self._own.start()

    def server_for(self, torch: str) -> ForkServer:
        """The server whose torch is the nearest to this release. Raises WorkerLostError where it does not start."""
        chosen = self._torches.nearest(torch)
        if not chosen.python:
            return self._own
        found = self._others.pop(chosen.python, None) or ForkServer(PRELOAD, python=chosen.python, root=bring_code())
        self._others[chosen.python] = found
        if len(self._others) > MOST_OTHERS:
            self._others.popitem(last=False)[1].close()
        try:
            found.start()
        except ServerLostError as lost:
            raise _lost(chosen, lost) from lost
        return found

    def close(self) -> None:
        """End them all, with what they do."""
        for each in (self._own, *self._others.values()):
            each.close()


def _lost(chosen: OfferedTorch, lost: ServerLostError) -> WorkerLostError:
    return WorkerLostError(
        f"nothing is planned with torch {chosen.minor} now: {lost}",
        remedy="see the service's log for what it said, or plan with another release of torch",
        place="software.torch",
    )
