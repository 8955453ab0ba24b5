"""Walls around code of users: no network, a read-only system without anybody's files, few system calls, hard limits.

They are bubblewrap's. Where they cannot be had the code is refused, never run without them.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import mmap
import os
import platform
import re
import shutil
import site
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planner.errors import PlannerError
from planner.runtime import overlay
from planner.runtime.child import ROOT
from planner.runtime.control_group import ControlGroup
from planner.runtime.limits import Limits
from planner.runtime.user_cache import user_cache
from planner.units import MIB

FILE_BYTES = 512 * MIB
"""The largest file that it may write."""
TMP_BYTES = 256 * MIB
OVERLAY_BYTES = 1024 * MIB
"""What it may write into a folder that is covered by an overlay; a hole in a file does not count."""
_MOST_OVERLAID = 100_000
"""Files of a folder that is covered by an overlay."""
_MOST_CLOSED = 256
"""Of them, and of its folders, those that not everybody may read: each is named in a command, of 2 MiB at most."""
NOBODY = 65534
_MORE_TASKS = 16
_COUNTS_NAMESPACES = (5, 14)
"""Linux that counts the tasks of each user namespace for RLIMIT_NPROC (kernel/ucount.c)."""
_TOOLS = ("bwrap", "prlimit", "setpriv")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_ETC = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
_KERNEL_SETTINGS = "/proc/sys"
_HIDDEN_FOLDERS = (_KERNEL_SETTINGS, "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi")
_HIDDEN_FILES = (
    "/proc/cmdline", "/proc/config.gz", "/proc/diskstats", "/proc/iomem", "/proc/ioports", "/proc/kallsyms",
    "/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/modules", "/proc/partitions", "/proc/sysrq-trigger",
    "/proc/timer_list",
)  # fmt: skip
"""What /proc tells of the host, or lets its owner change, beside the processes of the namespace."""
_PACKAGE = Path(__file__).parents[1]
_TRIAL_SECONDS = 20


class WallsError(PlannerError):
    """There are no walls to be had here, so code of users is not run."""


@dataclass(frozen=True, slots=True)
class WalledStart:
    """What a child behind walls is started with."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    descriptors: tuple[int, ...]
    """To be inherited; closed when the child has been started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """What stands around a child, and what it may reach inside."""

    readable: tuple[str, ...] = ()
    """Folders that it may read beside the system, Python's packages and planner."""
    devices: tuple[str, ...] = ()
    """Device nodes: those of a GPU."""
    network: bool = False
    """Whether it keeps the host's network and shared memory, to meet its peers."""
    as_root: bool = False
    """Whether the operator knows that this process is root; the code itself never is."""
    overlaid: str = ""
    """A folder that it may read, and write into: what it writes lies in memory, and is gone with it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Its own variables. They are set inside, behind everything that stands up the walls: LD_PRELOAD is one of them."""
    place: str = "model.factory"
    """Where code came from, for errors."""

    def refusal(self) -> WallsError | None:
        """Why code is not run here; None if the walls stand. Tried once in a process."""
        problem = _try_here(self.as_root).problem
        if not problem:
            return None
        return WallsError(
            f"code of users is not run here: {problem}",
            allowed="a node with bubblewrap and user namespaces, and a service that is not root",
            remedy="leave PLANNER_FACTORIES empty, or set the node up (docs/security.md)"
            if self.place == "model.factory"
            else "set the node up (docs/security.md), or run the program with the command line",
            place=self.place,
        )

    def weakness(self) -> str:
        """What these walls do not bound on this machine; empty where they bound all."""
        cause = _try_here(self.as_root).counts_no_tasks
        if not cause or ControlGroup.can_be_made():
            return ""
        return (
            f"processes and threads of code of users are only looked at, not bounded by the kernel: {cause}; allow "
            "user namespaces (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)"
        )

    @contextlib.contextmanager
    def prepare_start(self, limits: Limits) -> Iterator[WalledStart]:
        """The command line in front of a child's, and what goes with it. Raises WallsError where there are none."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        self._refuse_unreadable()
        counts_tasks = not _try_here(self.as_root).counts_no_tasks
        seconds = math.ceil(limits.seconds) * (os.cpu_count() or 1)
        # --data counts private writable pages when they are asked for, touched or not, but not the paper GPU's
        # addresses.
        resources = (
            "prlimit", f"--cpu={seconds}", f"--data={limits.memory_bytes}", "--nofile=1024", f"--fsize={FILE_BYTES}",
            "--core=0", *(_task_limit(limits) if counts_tasks else ()), "--",
        )  # fmt: skip
        front = overlay.front_of_command(self.overlaid, OVERLAY_BYTES) if self.overlaid else ()
        own = [f"{name}={value}" for name, value in self.variables.items()]
        inside = (*resources, *(("env", *own) if own else ()))
        rules = filter_program(memory_files=self.network, shared_memory=self.network or bool(self.devices))
        with _as_pipe(rules) as program:
            command = self._bubblewrap(program, counts_tasks=counts_tasks)
            yield WalledStart((*front, *command, *inside), environment(), (program,))

    def _bubblewrap(self, program: int, *, counts_tasks: bool) -> tuple[str, ...]:
        """As root it ends with a second bubblewrap that nobody starts: the kernel counts the tasks of a user namespace,
        and in one that root starts the code would still own root's files under /proc."""
        python = (sys.prefix, sys.base_prefix, *site.getsitepackages())
        # planner itself with what was brought along with it; not the folder in which planner's checkout lies. Of the
        # cache the native libraries alone: beside them lie traces of other jobs.
        built = (path for name in ("paper-*", "cuda-*") for path in user_cache().glob(name))
        own = (str(_PACKAGE), str(ROOT / "yaml"), *map(str, built))
        readable = [path for path in (*_SYSTEM, *_ETC, *python, *own, *self.readable) if path and os.path.exists(path)]
        # In an order in which no bind hides another: a link stays a path of its own.
        readable = sorted(dict.fromkeys(readable), key=_depth)
        covered = ("--bind", overlay.COVERED, self.overlaid, *_list_closed(self.overlaid)) if self.overlaid else ()
        # bubblewrap by itself would make the folders above them for root only.
        above = {str(parent) for path in (*readable, *covered[2:3]) for parent in Path(path).parents} - {"/"}
        parents = [part for path in sorted(above, key=_depth) for part in ("--perms", "0755", "--dir", path)]
        binds = [part for path in readable for part in ("--ro-bind", path, path)]
        is_root = os.geteuid() == 0
        is_twofold = is_root and counts_tasks
        # bubblewrap itself reads /proc/sys
        folders = [
            path for path in _HIDDEN_FOLDERS if os.path.isdir(path) and not (is_twofold and path == _KERNEL_SETTINGS)
        ]
        hidden = [part for path in folders for part in ("--tmpfs", path, "--remount-ro", path)]
        hidden += [part for path in filter(os.path.exists, _HIDDEN_FILES) for part in ("--ro-bind", "/dev/null", path)]
        devices = [part for path in self.devices for part in ("--dev-bind-try", path, path)]
        shared = ["--share-net", "--ro-bind", "/sys", "/sys"] if self.network else []
        system_calls = ("--seccomp", str(program))
        return (
            "bwrap", *_namespaces(), *shared, "--die-with-parent", "--new-session",
            *(() if is_twofold else system_calls),
            "--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/tmp", *parents, *binds, *covered,
            "--proc", "/proc", *hidden, "--dev", "/dev",
            "--dev-bind", "/dev/full", "/dev/zero",  # it reads as zeros, too, and cannot be mapped as shared memory
            "--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/dev/shm", *devices,
            "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--",
            *(_DROP_ROOT if is_root else ()), *((*_INNER, *system_calls, "--") if is_twofold else ()),
        )  # fmt: skip

    def _refuse_unreadable(self) -> None:
        """As root the code runs as nobody, who may not be able to read what was meant for it."""
        if os.geteuid() != 0:
            return
        for path in filter(None, (*self.readable, self.overlaid)):
            if os.path.isdir(path) and not os.stat(path).st_mode & 0o005 == 0o005:
                raise WallsError(
                    f"{path} is not readable by everybody, and code of users does not run as root",
                    remedy=f"chmod o+rx {path}",
                    place="model.factory_path" if self.place == "model.factory" else self.place,
                )


def _depth(path: str) -> int:
    return path.count("/")


def environment() -> dict[str, str]:
    """Nothing of this process's own: not the database's password, not a token."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "XDG_CACHE_HOME": str(user_cache().parent),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
    }


@dataclass(frozen=True, slots=True)
class _Trial:
    problem: str = ""
    """Why there are no walls; empty if there are."""
    counts_no_tasks: str = ""
    """Why the kernel does not count the tasks of what runs in them; empty if it does."""


@functools.cache
def _try_here(as_root: bool) -> _Trial:
    if os.geteuid() == 0 and not as_root:
        return _Trial("the service runs as root (PLANNER_FACTORIES_AS_ROOT says that this is meant)")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return _Trial(f"not installed: {', '.join(missing)}")
    walls = Walls(as_root=as_root)
    problem = _try(walls, counts_tasks=True)
    # Root needs a user namespace for nothing else.
    if problem and os.geteuid() == 0 and not _try(walls, counts_tasks=False):
        return _Trial(counts_no_tasks=problem)
    return _Trial(problem)


def _try(walls: Walls, *, counts_tasks: bool) -> str:
    """What is said where they do not stand."""
    try:
        with _as_pipe(filter_program()) as program:
            trial = [*walls._bubblewrap(program, counts_tasks=counts_tasks), "true"]
            ended = subprocess.run(
                trial, capture_output=True, timeout=_TRIAL_SECONDS, check=False, pass_fds=(program,), env=environment()
            )
    except LookupError as machine:
        return f"no filter of system calls is known for {machine}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    problem = ended.stderr.decode(errors="replace").strip()
    return (problem or f"bubblewrap ends with {ended.returncode}") if ended.returncode else ""


@contextlib.contextmanager
def _as_pipe(content: bytes) -> Iterator[int]:
    """A descriptor from which this can be read; shorter than what a pipe holds."""
    reading, writing = os.pipe()
    try:
        os.write(writing, content)
        os.close(writing)
        yield reading
    finally:
        os.close(reading)


def _namespaces() -> tuple[str, ...]:
    """Root needs no user namespace, and in one it would still own the host's files under /proc."""
    if os.geteuid() != 0:
        return (
            "--unshare-all", "--unshare-user", "--disable-userns", "--uid", str(NOBODY), "--gid", str(NOBODY),
            "--cap-drop", "ALL", "--hostname", "sandbox",
        )  # fmt: skip
    kept = [part for name in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP") for part in ("--cap-add", name)]
    return (
        "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
        "--cap-drop", "ALL", *kept, "--hostname", "sandbox",
    )  # fmt: skip


_DROP_ROOT = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all",
    "--no-new-privs", "--",
)  # fmt: skip
_INNER = (
    "bwrap", "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), "--die-with-parent", "--dev-bind", "/", "/",
    "--tmpfs", _KERNEL_SETTINGS, "--remount-ro", _KERNEL_SETTINGS,
)  # fmt: skip


def _task_limit(limits: Limits) -> tuple[str, ...]:
    """The kernel's own bound, in which the watcher still sees that there are too many. Linux before 5.14 counts all
    that runs under this user."""
    release = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    return (f"--nproc={limits.tasks + _MORE_TASKS}",) if release >= _COUNTS_NAMESPACES else ()


def _list_closed(folder: str) -> Iterator[str]:
    """What covers the parts of a folder that not everybody may read: code that runs as their owner could.

    Raises WallsError for a folder of so many files that they cannot be looked through for each start, or of so many
    such parts that they cannot be said in a command.
    """
    if os.geteuid() == 0:  # the code is somebody else
        return
    count = closed = 0
    for path, folders, files in os.walk(folder):
        count += 1 + len(files)
        if count > _MOST_OVERLAID:
            raise WallsError(
                f"{folder} has more than {_MOST_OVERLAID:,} files, too many to look for those that are not everybody's",
                remedy="keep the program in a folder without its data",
                place="program",
            )
        for name in [*folders, *files]:
            member = os.path.join(path, name)
            try:
                mode = os.lstat(member).st_mode
            except FileNotFoundError:  # gone meanwhile
                continue
            if stat.S_ISDIR(mode) and mode & 0o005 != 0o005:
                folders.remove(name)
                yield from ("--perms", "0755", "--tmpfs", member)
            elif stat.S_ISREG(mode) and not mode & stat.S_IROTH:
                yield from ("--ro-bind", "/dev/null", member)
            else:
                continue
            closed += 1
            if closed > _MOST_CLOSED:
                raise WallsError(
                    f"{folder} has more than {_MOST_CLOSED} files and folders that not everybody may read",
                    remedy=f"chmod -R o+rX {folder}, or take them out",
                    place="program",
                )


# Numbers are those of linux/arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (6.18).
_INSTRUCTION = struct.Struct("=HBBI")
"""struct sock_filter (linux/filter.h)."""
_LOAD, _AND, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x45, 0x35, 0x06
"""BPF_LD|BPF_W|BPF_ABS, BPF_ALU|BPF_AND|BPF_K, BPF_JMP with BPF_JEQ, BPF_JSET, BPF_JGE and BPF_K, BPF_RET|BPF_K
(linux/bpf_common.h)."""
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
"""SECCOMP_RET_ALLOW, _KILL_PROCESS, _ERRNO (linux/seccomp.h)."""
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_FIRST_ARGUMENT_AT, _SECOND_ARGUMENT_AT, _THIRD_ARGUMENT_AT, _FOURTH_ARGUMENT_AT = 16, 24, 32, 40
"""Offsets in struct seccomp_data (linux/seccomp.h)."""
_X32_BIT = 0x40000000
_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET | NEWTIME (linux/sched.h)."""
_NETLINK = 16
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, _NETLINK)

_NUMBERS: dict[str, tuple[int, int]] = {
    # name: (x86-64, 64-bit Arm)
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "chroot": (161, 51),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "delete_module": (176, 106), "fanotify_init": (300, 262),
    "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430),
    "fspick": (433, 433), "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "keyctl": (250, 219), "lookup_dcookie": (212, 18), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "mq_open": (240, 180), "msgget": (68, 186), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "perf_event_open": (298, 241), "personality": (135, 92),
    "pidfd_getfd": (438, 438), "pivot_root": (155, 41), "process_madvise": (440, 440), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "reboot": (169, 142),
    "request_key": (249, 218), "semget": (64, 190), "setdomainname": (171, 162), "sethostname": (170, 161),
    "setns": (308, 268), "settimeofday": (164, 170), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282), "vmsplice": (278, 75),
}  # fmt: skip
_MEMORY_FILES: dict[str, tuple[int, int]] = {
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmat": (30, 196), "shmget": (29, 194),
}  # fmt: skip
"""Memory that no page of the process shows; so do pages in a pipe (vmsplice)."""
_CLONE, _CLONE3, _SOCKET = (56, 220), (435, 435), (41, 198)
_FCNTL, _SETSOCKOPT, _MMAP = (72, 25), (54, 208), (9, 222)
_SHARED_WITHOUT_FILE = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
"""Its pages stay until the last mapping of it is gone, also those that no process maps any more (MADV_DONTNEED)."""
_F_SETPIPE_SZ = 1031
"""linux/fcntl.h"""
_BUFFER_SIZES = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF and both with FORCE (asm-generic/socket.h)."""


_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""AUDIT_ARCH_... (linux/audit.h), and the column of the numbers above."""


def filter_program(*, memory_files: bool = False, shared_memory: bool = False, machine: str = "") -> bytes:
    """The filter as the kernel reads it; `memory_files` admits memfd and System V shared memory, as NCCL uses them,
    `shared_memory` mappings without a file that are shared, as CUDA's pinned memory is.

    Raises LookupError for a machine whose numbers are not known here.
    """
    audit, column = _ARCHITECTURES[machine or platform.machine()]
    numbers = _NUMBERS if memory_files else _NUMBERS | _MEMORY_FILES
    denied = sorted(columns[column] for columns in numbers.values())
    instructions = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        *([(_AT_LEAST, 0, 1, _X32_BIT), _refuse(errno.ENOSYS)] if column == 0 else []),
    ]
    for number in denied:
        instructions += [(_EQUAL, 0, 1, number), _refuse(errno.EPERM)]
    # Its flags lie in memory, where no filter sees them; without it the C library takes clone.
    instructions += [(_EQUAL, 0, 1, _CLONE3[column]), _refuse(errno.ENOSYS)]
    if not shared_memory:
        instructions += [
            (_EQUAL, 0, 5, _MMAP[column]),
            (_LOAD, 0, 0, _FOURTH_ARGUMENT_AT),
            (_AND, 0, 0, _SHARED_WITHOUT_FILE),
            (_EQUAL, 0, 1, _SHARED_WITHOUT_FILE),
            _refuse(errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ]
    instructions += [
        (_EQUAL, 0, 4, _FCNTL[column]),
        (_LOAD, 0, 0, _SECOND_ARGUMENT_AT),
        (_EQUAL, 0, 1, _F_SETPIPE_SZ),
        _refuse(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
        # Libraries that ask for larger buffers work with those that they have: the call succeeds and does nothing.
        (_EQUAL, 0, 5 + len(_BUFFER_SIZES), _SETSOCKOPT[column]),
        (_LOAD, 0, 0, _SECOND_ARGUMENT_AT),
        (_EQUAL, 0, 1 + len(_BUFFER_SIZES), socket.SOL_SOCKET),
        (_LOAD, 0, 0, _THIRD_ARGUMENT_AT),
        *[(_EQUAL, len(_BUFFER_SIZES) - at, 0, size) for at, size in enumerate(_BUFFER_SIZES)],
        (_RETURN, 0, 0, _ALLOW),
        _refuse(0),
        (_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        _refuse(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 1, 0, _SOCKET[column]),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        *[(_EQUAL, len(_FAMILIES) - at, 0, int(family)) for at, family in enumerate(_FAMILIES)],
        _refuse(errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in instructions)


def _refuse(number: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERRNO | number)
