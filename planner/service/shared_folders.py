"""Finds the folder of a program on a file system that the service and its users share, and reads texts in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from planner.errors import SpecError
from planner.service.problems import RequestError
from planner.service.tarballs import MOST_TEXT_BYTES
from planner.units import show_bytes

_REMEDY = "chmod -R o+rX the folder of the program"


class SharedFolder:
    """A folder within one of those that the operator named. Raises RequestError (403) for any other."""

    def __init__(self, written: str, allowed: Sequence[str]) -> None:
        roots = [Path(each).resolve() for each in allowed]
        path = Path(written)
        found = path.resolve() if path.is_absolute() and "\0" not in written else None
        if found is None or not any(found.is_relative_to(root) for root in roots):
            # Whether there is such a folder is not told of what lies elsewhere.
            raise RequestError(
                403,
                f"{written!r:.200} is no folder in which this service looks for programs",
                allowed=", ".join(map(str, roots)) or "no folder; a tarball as the body",
                remedy="send a tarball, or ask the operator to name the folder in PLANNER_PROGRAM_FOLDERS",
                place="path",
            )
        root = next(root for root in roots if found.is_relative_to(root))
        if not found.is_dir() or not _is_open(root, found):
            raise SpecError(
                f"there is no folder {written!r:.200} that everybody may read",
                allowed="the folder of a program",
                remedy=_REMEDY,
                place="path",
            )
        self.path = str(found)

    def text_of(self, written: str) -> str:
        """The text of a file that lies within the folder, links followed. Raises SpecError where there is none."""
        try:
            descriptor = os.open(os.path.join(self.path, written), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            raise SpecError("is not in the folder of the program", allowed="a file there", place=written) from None
        with os.fdopen(descriptor, "rb") as file:
            # Of what is open: a link that is changed meanwhile leads nowhere else.
            real = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            mode = os.fstat(descriptor).st_mode
            if not real.is_relative_to(self.path) or not stat.S_ISREG(mode):
                raise SpecError("is not in the folder of the program", allowed="a file there", place=written)
            # The service may be able to read what its caller is not.
            if not mode & stat.S_IROTH or not _is_open(Path(self.path), real.parent):
                raise SpecError(
                    "is a file that not everybody may read",
                    allowed="what the program itself can read, which runs as nobody",
                    remedy=_REMEDY,
                    place=written,
                )
            content = file.read(MOST_TEXT_BYTES + 1)
        if len(content) > MOST_TEXT_BYTES:
            raise SpecError("is too large to be read", allowed=f"up to {show_bytes(MOST_TEXT_BYTES)}", place=written)
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise SpecError("is no UTF-8 text", place=written) from None


def _is_open(root: Path, folder: Path) -> bool:
    """Whether everybody may enter each folder below the root on the way to this one, and list this one."""
    way = [folder, *(each for each in folder.parents if each != root and each.is_relative_to(root))]
    try:
        return all(os.stat(each).st_mode & stat.S_IXOTH for each in way if each != root) and (
            folder == root or bool(os.stat(folder).st_mode & stat.S_IROTH)
        )
    except OSError:
        return False
