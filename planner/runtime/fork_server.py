"""A fork server: it has loaded what children need, and forks one for each task.

Loading PyTorch takes seconds, a fork some milliseconds; a child is then as fresh as an interpreter of its own. The
server must stay single-threaded, and must not have run a backward: neither survives a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from planner.runtime import child, process_tree
from planner.runtime.child import ROOT, interpreter_words
from planner.runtime.garbage_collection import pause_collection
from planner.runtime.messages import Task, take_request, task_file

_SERVER = "from planner.runtime import fork_server; fork_server.serve()"
_NUMBER = struct.Struct("!q")
_READY, _FORK = b"r", b"f"
_DESCRIPTORS = 4
"""With each request: the pickled task, the answer's pipe, standard error, the socket for process id and exit code."""


class ServerLostError(Exception):
    """The server does not start, or has died twice."""


class ForkedProcess:
    """A child of the server."""

    def __init__(self, pid: int, answer: int, errors: int, control: socket.socket) -> None:
        self.pid, self.answer, self.errors = pid, answer, errors
        self._control, self._code = control, None
        control.setblocking(False)

    _code: int | None

    def poll(self) -> int | None:
        """The exit code; that of a kill if the server died, for its children die with it."""
        if self._code is None:
            try:
                message = self._control.recv(_NUMBER.size)
            except BlockingIOError:
                return None
            self._code = _NUMBER.unpack(message)[0] if len(message) == _NUMBER.size else -signal.SIGKILL
        return self._code

    def close(self) -> None:
        """Close its pipes and its socket."""
        for descriptor in (self.answer, self.errors):
            os.close(descriptor)
        self._control.close()


class ForkServer:
    """The server as its owner sees it. May be used by several threads; ends with its owner."""

    def __init__(
        self, preload: str, *, python: str = sys.executable, root: Path = ROOT,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """`preload` is `module:function`, called once in the server before it forks. `python` is another interpreter,
        which finds planner in `root`; `environment` is added to this process's own."""
        self._preload, self._python, self._root, self._environment = preload, python, root, environment
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int:
        """Its process id; 0 while it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def start(self) -> None:
        """Start it and wait until it has loaded; does nothing while it runs. Raises ServerLostError."""
        with self._lock:
            if self.pid:
                return
            self.close()
            output = None
            with contextlib.suppress(AttributeError, OSError, ValueError):  # a standard error that is not a file
                output = sys.stderr.fileno()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            arguments = str(theirs.fileno()), self._preload
            self._process = subprocess.Popen(
                interpreter_words(_SERVER, *arguments, python=self._python, root=self._root),
                stdin=subprocess.DEVNULL, stdout=output, pass_fds=(theirs.fileno(),), start_new_session=True,
                env={**os.environ, **self._environment},
            )  # fmt: skip
            theirs.close()
            self._socket = ours
            if ours.recv(len(_READY)) != _READY:
                code = self._process.wait()
                self.close()
                raise ServerLostError(f"the fork server did not start: it ended with {code}")

    def close(self) -> None:
        """End it with all of its children."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()  # at its end the server kills its children and goes
            if self._process is not None:
                try:
                    self._process.wait(timeout=5)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            self._process = self._socket = None

    def fork(self, task: Task) -> ForkedProcess:
        """A child that runs the task. A server that has died is started anew, once. Raises ServerLostError."""
        with self._lock:
            for _ in range(2):
                self.start()
                try:
                    return self._fork(task)
                except (OSError, struct.error):
                    self.close()
            raise ServerLostError("the fork server died twice")

    def _fork(self, task: Task) -> ForkedProcess:
        assert self._socket is not None
        answer, answer_end = os.pipe()
        errors, errors_end = os.pipe()
        control, control_end = socket.socketpair()
        try:
            with task_file(task) as request:
                socket.send_fds(self._socket, [_FORK], [request, answer_end, errors_end, control_end.fileno()])
            pid = _NUMBER.unpack(control.recv(_NUMBER.size, socket.MSG_WAITALL))[0]
        except (OSError, struct.error):
            for descriptor in (answer, errors):
                os.close(descriptor)
            control.close()
            raise
        finally:
            os.close(answer_end)
            os.close(errors_end)
            control_end.close()
        return ForkedProcess(pid, answer, errors, control)


def serve() -> None:
    """The server's side; ends this process when its owner has gone."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    module, _, name = sys.argv[2].partition(":")
    with pause_collection():
        getattr(importlib.import_module(module), name)()
    gc.collect()
    gc.freeze()  # what all children share is not written to by their garbage collectors
    requests.sendall(_READY)
    _Server(requests).loop()
    os._exit(0)  # libraries of a CUDA build would tell what they leave behind


class _Server:
    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._children: dict[int, socket.socket] = {}
        self._woken, self._wake = os.pipe()
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def loop(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == self._woken:
                        os.read(self._woken, 4096)
                        self._reap()
                    elif not self._take():
                        for pid in self._children:
                            process_tree.kill(pid)
                        return

    def _take(self) -> bool:
        """Fork for one request; False when there will be no more."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._requests, len(_FORK), _DESCRIPTORS)
        except OSError:
            return False
        if message != _FORK:
            return False
        request, answer, errors, control_end = descriptors
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(request, answer, errors, server)
        control = socket.socket(fileno=control_end)
        self._children[pid] = control
        self._tell(control, pid)
        for descriptor in (request, answer, errors):
            os.close(descriptor)
        return True

    def _become_child(self, request: int, answer: int, errors: int, server: int) -> None:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            os.dup2(request, 0)
            os.dup2(answer, 1)
            os.dup2(errors, 2)
            os.closerange(3, 4096)
            child.die_with_parent(server)
            child.run(take_request(), child.divert_output())
        finally:
            os._exit(1)

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            control = self._children.pop(pid, None)
            if control is not None:
                self._tell(control, os.waitstatus_to_exitcode(status))
                control.close()

    def _tell(self, control: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):  # its owner has given the child up
            control.send(_NUMBER.pack(number))
