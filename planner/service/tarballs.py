"""Reads a tarball that somebody sent: looks through its names before anything is unpacked, and gives out its texts.

It is unpacked behind walls only (planner.running.walled_program); here nothing is written anywhere.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import PurePosixPath
from typing import IO

from planner.errors import SpecError
from planner.service.problems import RequestError
from planner.units import MIB, show_bytes

MOST_FILES = 10_000
MOST_UNPACKED_BYTES = 128 * MIB
"""Half of what the folder in memory holds into which it is unpacked (planner.runtime.walls.TMP_BYTES)."""
MOST_TEXT_BYTES = MIB
"""Of a file that the command names and that is read with it: a script, a config of accelerate."""
LONGEST_PATH = 1000
_LONGEST_PART = 255
"""Bytes of one part of a path (Linux, NAME_MAX)."""
_DEEPEST = 64
"""Folders above a file."""
_LATEST = 2**33
"""Seconds since 1970, which every file system keeps: the year 2242."""
_GZIP = b"\x1f\x8b"
_PLACE = "the tarball"


class Tarball:
    """A tarball, plain or gzipped, of files and folders that all lie in it.

    Raises RequestError (422) for what is no tarball, has a link or a device, a name that leaves it, or too much.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._files: dict[str, tarfile.TarInfo] = {}
        self._folders: set[str] = set()
        unpacked = 0
        try:
            with self._open() as packed:
                for count, member in enumerate(packed):
                    _check(member)
                    unpacked += member.size
                    if count >= MOST_FILES or unpacked > MOST_UNPACKED_BYTES:
                        raise _refused(
                            "the tarball unpacks to too much",
                            f"{MOST_FILES:,} files, {show_bytes(MOST_UNPACKED_BYTES)}",
                            "leave out data, weights and .git; data may lie in a folder that the service reads",
                        )
                    self._take(member)
        except RequestError:
            raise
        except Exception as error:
            # tarfile lets through what Python's own functions say of a header: of no kind that could be listed.
            raise _refused(
                f"the body is no tarball: {type(error).__name__}: {str(error)[:200]}",
                "a tar file, plain or gzipped",
                "tar -cz -C FOLDER .",
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
        content: IO[bytes] = io.BytesIO(self._content)
        if self._content.startswith(_GZIP):
            content = gzip.GzipFile(fileobj=content)  # type: ignore[assignment]
        return tarfile.open(fileobj=_InPieces(content), mode="r:")  # type: ignore[call-overload, no-any-return]

    def _take(self, member: tarfile.TarInfo) -> None:
        path = PurePosixPath(member.name)
        above = {str(each) for each in path.parents} - {"."}
        if member.isreg():
            self._files[str(path)] = member
        else:
            above |= {str(path)} - {"."}
        self._folders |= above
        both = next((each for each in (*above, str(path)) if each in self._files and each in self._folders), None)
        if both is not None:
            raise _refused(f"{both[:200]!a} is a file and a folder", "each name once", "tar -cz -C FOLDER .")


class _InPieces:
    """A file of which no piece is read that is larger than a text: a header that says so is none."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content
        self.seek, self.tell, self.close = content.seek, content.tell, content.close

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= 2 * MOST_TEXT_BYTES:
            raise ValueError(f"a header of {size} bytes")
        return self._content.read(size)


def _check(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\0" in member.name or len(member.name) > LONGEST_PATH:
        raise _refused(
            f"the name {member.name[:200]!a} leaves the tarball", "relative names without ..", "tar -cz -C FOLDER ."
        )
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise _refused(
            f"{member.name[:200]!a} is a link, a device or a pipe, or has holes",
            "files and folders",
            "tar --dereference",
        )
    too_long = any(len(os.fsencode(part)) > _LONGEST_PART for part in path.parts)
    if too_long or len(path.parts) > _DEEPEST or (member.isreg() and not path.parts):
        raise _refused(f"{member.name[:200]!a} is no name of a file", "names as files have them", "tar -cz -C FOLDER .")
    if member.size < 0 or not 0 <= member.mtime < _LATEST:
        raise _refused(f"{member.name[:200]!a} has a size or a time that no file has", "a file's own", "tar -cz")


def _refused(problem: str, allowed: str, remedy: str) -> RequestError:
    return RequestError(422, problem, allowed=allowed, remedy=remedy, place=_PLACE)
