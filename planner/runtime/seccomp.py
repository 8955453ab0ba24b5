"""Builds a seccomp-BPF filter for code of users: what a model's constructor does not need is refused.

Numbers are those of linux/arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (6.18).
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_INSTRUCTION = struct.Struct("=HBBI")
"""struct sock_filter (linux/filter.h)."""
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
"""BPF_LD|BPF_W|BPF_ABS, BPF_JMP with BPF_JEQ, BPF_JSET, BPF_JGE and BPF_K, BPF_RET|BPF_K (linux/bpf_common.h)."""
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
"""SECCOMP_RET_ALLOW, _KILL_PROCESS, _ERRNO (linux/seccomp.h)."""
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
"""Offsets in struct seccomp_data (linux/seccomp.h)."""
_X32_BIT = 0x40000000
_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET | NEWTIME (linux/sched.h)."""
_NETLINK = 16
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, _NETLINK)

_NUMBERS: dict[str, tuple[int, int]] = {
    # name: (x86-64, 64-bit Arm)
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_MEMORY_FILES: dict[str, tuple[int, int]] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmat": (30, 196),
    "shmget": (29, 194),
}
"""Memory that no page of the process shows."""
_CLONE, _CLONE3, _SOCKET = (56, 220), (435, 435), (41, 198)


@dataclass(frozen=True, slots=True)
class _Architecture:
    audit: int
    """AUDIT_ARCH_... (linux/audit.h)."""
    column: int


_ARCHITECTURES = {"x86_64": _Architecture(0xC000003E, 0), "aarch64": _Architecture(0xC00000B7, 1)}


def program(*, memory_files: bool = False, machine: str = "") -> bytes:
    """The filter as the kernel reads it; `memory_files` admits memfd and System V shared memory, as NCCL uses them.

    Raises LookupError for a machine whose numbers are not known here.
    """
    architecture = _ARCHITECTURES[machine or platform.machine()]
    column = architecture.column
    denied = [each[column] for each in _NUMBERS.values()]
    if not memory_files:
        denied += [each[column] for each in _MEMORY_FILES.values()]
    instructions = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        *([(_AT_LEAST, 0, 1, _X32_BIT), _refuse(errno.ENOSYS)] if column == 0 else []),
    ]
    for number in sorted(denied):
        instructions += [(_EQUAL, 0, 1, number), _refuse(errno.EPERM)]
    # Its flags lie in memory, where no filter sees them; without it the C library takes clone.
    instructions += [(_EQUAL, 0, 1, _CLONE3[column]), _refuse(errno.ENOSYS)]
    instructions += [
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
    return _assemble(instructions)


def _refuse(number: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERRNO | number)


def _assemble(instructions: Sequence[tuple[int, int, int, int]]) -> bytes:
    return b"".join(_INSTRUCTION.pack(*each) for each in instructions)
