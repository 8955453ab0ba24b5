"""What children of a test do; imported by them, so it needs nothing but the standard library and planner.runtime."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.runtime.child import temporary_folder
from planner.runtime.messages import AnswerWriter

MIB = 2**20


def echoes(argument: Any, answer: AnswerWriter) -> None:
    print("what a program prints is not an answer")
    answer.write("first", b"1")
    answer.write("second", repr(argument).encode())


def writes_beside_itself(folder: str, answer: AnswerWriter) -> None:
    Path(folder, "new.txt").write_text("written")
    init = ""
    with contextlib.suppress(PermissionError):  # it is root's
        init = Path("/proc/1/environ").read_text()
    found = {
        "files": sorted(os.listdir(folder)),
        "own variable": os.environ["LD_PRELOAD"],
        "init has it": "LD_PRELOAD" in init,
    }
    answer.write("found", json.dumps(found).encode())


def reads_texts_below(folder: str, answer: AnswerWriter) -> None:
    """What it can read there of text files, but for empty ones."""
    found = []
    for above, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found.append(Path(above, name).read_text() if name.endswith(".txt") else "")
    answer.write("found", json.dumps(list(filter(None, found))).encode())


def writes_into_its_input(_: Any, answer: AnswerWriter) -> None:
    """Whatever way there is to the file that its task came in; how many bytes went there, or what was read."""
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        found["read"] = len(os.read(0, 100)) + len(sys.stdin.read())
    for path in ("/proc/self/fd/0", "/proc/1/fd/0", f"/proc/{os.getppid()}/fd/0"):
        for kind in ("w", "r+", "a"):
            with contextlib.suppress(OSError, ValueError):
                if os.path.samefile(path, os.devnull):
                    continue
                with open(path, f"{kind}b", buffering=0) as file:
                    found[path] = file.write(b"x" * MIB)
    answer.write("found", json.dumps(found).encode())


def refuses(problem: str, _: AnswerWriter) -> None:
    raise SpecError(problem, allowed="something else", remedy="change it", place="there")


class DerivedError(SpecError):
    """With a field of its own."""

    def __init__(self, problem: str, steps: int, **said: str) -> None:
        super().__init__(problem, **said)
        self.steps = steps


def refuses_by_its_own_error(steps: int, _: AnswerWriter) -> None:
    raise DerivedError("it is wrong", steps, place="there")


def breaks(_: Any, __: AnswerWriter) -> None:
    raise LookupError("a fault\nframe #0: c10::Error (0x7f9c8456c1b6 in libc10.so)\n")


def exits(code: int, _: AnswerWriter) -> None:
    print("its last words")
    sys.exit(code)


def aborts(_: Any, __: AnswerWriter) -> None:
    os.abort()


def sleeps(folder: str, _: AnswerWriter) -> None:
    """With a child of its own, and one that has left its session and its parent."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    deserter = os.fork()
    if deserter == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        Path(folder, "deserter.tmp").write_text(str(os.getpid()))
        Path(folder, "deserter.tmp").rename(Path(folder, "deserter"))  # whole, when it is there
        time.sleep(600)
    os.waitpid(deserter, 0)
    while not Path(folder, "deserter").exists():
        time.sleep(0.01)
    Path(folder, "started.tmp").write_text(f"{os.getpid()} {child.pid} {Path(folder, 'deserter').read_text()}")
    Path(folder, "started.tmp").rename(Path(folder, "started"))
    time.sleep(600)


def eats(mebibytes: int, _: AnswerWriter) -> None:
    hoard = [b"x" * MIB * 16 for _ in range(mebibytes // 16)]
    time.sleep(600 + len(hoard))


def fills_a_memory_file(mebibytes: int, answer: AnswerWriter) -> None:
    """Written, never mapped: no page of the process shows it."""
    try:
        file = os.memfd_create("hoard")
    except OSError as error:
        answer.write("refused", type(error).__name__.encode())
        return
    for _ in range(mebibytes):
        os.write(file, b"x" * MIB)
    time.sleep(600)


def starts_threads(count: int, _: AnswerWriter) -> None:
    for _ in range(count):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    time.sleep(600)


def forks(count: int, _: AnswerWriter) -> None:
    for _ in range(count):
        if os.fork() == 0:
            time.sleep(600)
    time.sleep(600)


def forks_until_refused(most: int, answer: AnswerWriter) -> None:
    """How many of its children were started; never more than `most`."""
    started = 0
    with contextlib.suppress(BlockingIOError):
        while started < most:
            if os.fork() == 0:
                time.sleep(600)
            started += 1
    answer.write("found", json.dumps(started).encode())


def fills_page_tables(mebibytes: int, _: AnswerWriter) -> None:
    """Reads one page of each 2 MiB: of the process no page is counted but those of its tables."""
    with mmap.mmap(-1, mebibytes * MIB * 512, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ) as empty:
        for at in range(0, len(empty), 2 * MIB):
            empty[at]
        time.sleep(600)


def hides_sockets(count: int, answer: AnswerWriter) -> None:
    """With what they have received, on their way to another process: no process has them open."""
    carrier = socket.socketpair()
    for _ in range(count // 100):
        pairs = [socket.socketpair() for _ in range(100)]
        for sending, _ in pairs:
            sending.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sending.send(b"x" * 4096)
        socket.send_fds(carrier[0], [b"x"], [receiving.fileno() for _, receiving in pairs])
        for pair in pairs:
            for end in pair:
                end.close()
    answer.write("found", b"all are under way")
    time.sleep(600)


def asks_for_memory_that_nothing_shows(_: Any, answer: AnswerWriter) -> None:
    """Buffers of the kernel, and pages that stay when no process maps them any more."""
    found: dict[str, Any] = {}
    with socket.socketpair()[0] as end:
        before = end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * before)
        found["socket grows"] = end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > before
    reading, writing = os.pipe()
    libc = ctypes.CDLL(None, use_errno=True)

    def puts_pages_into_the_pipe() -> None:
        if libc.vmsplice(writing, (ctypes.c_size_t * 2)(id(found), 1), 1, 0) < 0:
            raise OSError(ctypes.get_errno(), "vmsplice")

    for name, tried in (
        ("pipe", lambda: fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, MIB)),
        ("zeros", lambda: mmap.mmap(os.open("/dev/zero", os.O_RDWR), MIB)),
        ("shared", lambda: mmap.mmap(-1, MIB)),
        ("pages in a pipe", puts_pages_into_the_pipe),
        ("private", lambda: mmap.mmap(-1, MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)),
    ):
        try:
            tried()
            found[name] = "given"
        except OSError as error:
            found[name] = type(error).__name__
    answer.write("found", json.dumps(found).encode())


def shares(mebibytes: int, answer: AnswerWriter) -> None:
    """With forks that write to none of its pages."""
    hoard = b"x" * MIB * mebibytes
    workers = []
    for _ in range(5):
        workers.append(os.fork())
        if workers[-1] == 0:
            time.sleep(1)
            os._exit(0)
    for worker in workers:
        os.waitpid(worker, 0)
    answer.write("part", hoard[:1])


def answers_much(mebibytes: int, answer: AnswerWriter) -> None:
    for _ in range(mebibytes):
        answer.write("part", b"[" * MIB)


def writes_beside_its_answer(text: str, _: AnswerWriter) -> None:
    for number in range(3, 20):
        try:
            os.write(number, text.encode())
        except OSError:
            continue
    os._exit(0)


def asks_for_one_large_block(gibibytes: int, answer: AnswerWriter) -> None:
    """As C code does: the whole at once, then every page of it."""
    size = gibibytes * 2**30
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    block = libc.malloc(size)
    if not block:
        answer.write("refused", b"no memory")
        return
    ctypes.memset(block, 1, size)
    time.sleep(600)


def tries(argument: dict[str, Any], answer: AnswerWriter) -> None:
    """One try after the other at what is outside: each by its name with what came of it."""
    libc = ctypes.CDLL(None, use_errno=True)

    def told(what: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return str(what(*arguments))[:200]
        except Exception as error:
            return type(error).__name__

    def unshares() -> int:
        if libc.unshare(0x10000000) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        return 0

    def mounts() -> int:
        if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) != 0:
            raise OSError(ctypes.get_errno(), "mount")
        return 0

    def traces_its_parent() -> int:
        if libc.ptrace(16, 1, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")
        return 0

    def fills_its_disk() -> None:
        with open("/tmp/large", "wb") as file:
            for _ in range(300):
                file.write(b"x" * MIB)

    found = {
        "user": os.getuid(),
        "environment": sorted(os.environ),
        "environment of its init": told(Path("/proc/1/environ").read_text),
        "processes": sorted(int(each) for each in os.listdir("/proc") if each.isdigit()) == sorted({1, *_own_tree()}),
        "connects": told(socket.create_connection, ("127.0.0.1", argument["port"]), 5),
        "listens to the kernel": told(socket.socket, socket.AF_PACKET, socket.SOCK_RAW),
        "reads": {path: told(Path(path).read_text) for path in argument["reads"]},
        "writes": {path: told(Path(path).write_text, "x") for path in argument["writes"]},
        "kernel settings": os.listdir("/proc/sys"),
        "signals its parent": told(os.kill, argument["process"], signal.SIGTERM),
        "makes a namespace": told(unshares),
        "mounts": told(mounts),
        "traces its init": told(traces_its_parent),
        "changes its root": told(os.chroot, "/tmp"),
        "becomes root": told(os.setuid, 0),
        "fills its disk": told(fills_its_disk),
    }
    answer.write("found", json.dumps(found).encode())


def _own_tree() -> set[int]:
    """This process and those above it in its namespace."""
    found, process = set(), os.getpid()
    while process > 0:
        found.add(process)
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def makes_a_temporary_folder(argument: tuple[str, str], _: AnswerWriter) -> None:
    """Its name is told by a link, which is whole as soon as it is there."""
    ending, link = argument
    with temporary_folder("test-") as folder:
        Path(folder, "file").write_text("of the test")
        Path(link).symlink_to(folder)
        if ending == "ends its process":
            os._exit(0)
        time.sleep(600 if ending == "takes too long" else 0)
