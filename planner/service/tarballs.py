"""Reads a tarball that somebody sent: looks through its names before anything is unpacked, and gives out its texts.

It is unpacked behind walls only (planner.running.walled_program); here nothing is written anywhere.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from pathlib import PurePosixPath

from planner.errors import SpecError
from planner.service.problems import RequestError
from planner.units import MIB, show_bytes

MOST_FILES = 10_000
MOST_UNPACKED_BYTES = 128 * MIB
"""Half of what the folder in memory holds into which it is unpacked (planner.runtime.walls.TMP_BYTES)."""
MOST_TEXT_BYTES = MIB
"""Of a file that the command names and that is read with it: a script, a config of accelerate."""
LONGEST_PATH = 1000
_GZIP = b"\x1f\x8b"
_PLACE = "the tarball"


class Tarball:
    """A tarball, plain or gzipped, of files and folders that all lie in it.

    Raises RequestError (422) for what is no tarball, has a link or a device, a name that leaves it, or too much.
    """

    def __init__(self, content: bytes) -> None:
        self._content, self._mode = content, "r:gz" if content.startswith(_GZIP) else "r:"
        self._files: dict[str, tarfile.TarInfo] = {}
        unpacked = 0
        try:
            with self._open() as packed:
                for count, member in enumerate(packed):
                    unpacked += member.size
                    if count >= MOST_FILES or unpacked > MOST_UNPACKED_BYTES:
                        raise _refused(
                            "the tarball unpacks to too much",
                            f"{MOST_FILES:,} files, {show_bytes(MOST_UNPACKED_BYTES)}",
                            "leave out data, weights and .git; data may lie in a folder that the service reads",
                        )
                    self._take(member)
        except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
            raise _refused(
                f"the body is no tarball: {str(error)[:200]}", "a tar file, plain or gzipped", "tar -cz -C FOLDER ."
            ) from None
        if not self._files:
            raise _refused("the tarball is empty", "the files of a program", "tar -cz -C FOLDER .")

    def text_of(self, written: str) -> str:
        """The text of a file in it. Raises SpecError where there is none."""
        member = self._files.get(str(PurePosixPath(written)))
        if member is None:
            raise SpecError("is not in the tarball", allowed="a file of the tarball, from its top", place=written)
        if member.size > MOST_TEXT_BYTES:
            raise SpecError("is too large to be read", allowed=f"up to {show_bytes(MOST_TEXT_BYTES)}", place=written)
        with self._open() as packed:
            found = packed.extractfile(member)
            content = found.read() if found is not None else b""
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise SpecError("is no UTF-8 text", place=written) from None

    def _open(self) -> tarfile.TarFile:
        mode: str = self._mode
        return tarfile.open(fileobj=io.BytesIO(self._content), mode=mode)  # type: ignore[call-overload, no-any-return]

    def _take(self, member: tarfile.TarInfo) -> None:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or "\0" in member.name or len(member.name) > LONGEST_PATH:
            raise _refused(
                f"the name {member.name[:200]!a} leaves the tarball", "relative names without ..", "tar -cz -C FOLDER ."
            )
        if not (member.isreg() or member.isdir()):
            raise _refused(
                f"{member.name[:200]!a} is a link, a device or a pipe", "files and folders", "tar --dereference"
            )
        if member.isreg():
            self._files[str(path)] = member


def _refused(problem: str, allowed: str, remedy: str) -> RequestError:
    return RequestError(422, problem, allowed=allowed, remedy=remedy, place=_PLACE)
