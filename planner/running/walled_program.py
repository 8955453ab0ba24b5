"""A program that somebody else sent: its files, the walls behind which it runs, and how it finds its folder there."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from planner.errors import ProgramError
from planner.runtime.walls import Walls

_UNPACKED = Path("/tmp/program")


@dataclass(frozen=True, slots=True, kw_only=True)
class WalledProgram:
    """Its files are a `tarball`, or lie in a `folder`, which is an absolute path without links."""

    walls: Walls
    folder: str = ""
    tarball: bytes = b""

    def walls_with(self, variables: Mapping[str, str]) -> Walls:
        """The walls around one rank, with its variables."""
        return replace(self.walls, overlaid=self.folder, variables={**variables, "USER": "nobody"}, place="program")

    def enter(self) -> None:
        """The child's side, behind the walls: the folder of the program becomes this process's own."""
        if self.folder:
            os.chdir(self.folder)
            return
        _UNPACKED.mkdir()
        # Whoever took it in has looked through its names (planner.service.tarballs).
        try:
            with tarfile.open(fileobj=io.BytesIO(self.tarball)) as packed:
                packed.extractall(_UNPACKED, filter="data")
        except (tarfile.TarError, OSError, ValueError) as error:
            raise ProgramError(
                f"the tarball cannot be unpacked: {error}", allowed="files and folders", place="the tarball"
            ) from None
        os.chdir(_UNPACKED)
