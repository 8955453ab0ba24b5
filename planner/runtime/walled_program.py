"""The files of somebody else's program, and the walls behind which it runs."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from planner.errors import ProgramError
from planner.runtime.walls import Walls

UNPACKED = Path("/tmp/program")
_AT_START = ("LD_", "PAPER_", "GLIBC_TUNABLES", "MALLOC_", "PYTHONHASHSEED")
"""What the loader, the C library, Python and CUDA's libraries on paper read once; none of them makes Python run a file
(site.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalledProgram:
    """Its files are a `tarball`, or lie in a `folder`, which is an absolute path without links."""

    walls: Walls
    folder: str = ""
    tarball: bytes = b""

    def walls_with(self, variables: Mapping[str, str]) -> Walls:
        """The walls around one process, with those of its variables that only a process's start heeds. All others are
        set in it: an interpreter that was started with them would run code that they name before planner's own."""
        first = {name: value for name, value in variables.items() if name.startswith(_AT_START)}
        return replace(self.walls, overlaid=self.folder, variables={**first, "USER": "nobody"}, place="program")

    def enter(self) -> None:
        """The child's side, behind the walls: the folder of the program becomes this process's own."""
        if self.folder:
            os.chdir(self.folder)
            return
        UNPACKED.mkdir()
        # planner.service.http.run_requests has checked its names.
        try:
            with tarfile.open(fileobj=io.BytesIO(self.tarball)) as packed:
                packed.extractall(UNPACKED, filter="data")
        except (tarfile.TarError, OSError, ValueError) as error:
            raise ProgramError(
                f"the tarball cannot be unpacked: {error}", allowed="files and folders", place="the tarball"
            ) from None
        os.chdir(UNPACKED)
