"""Tells a program's own code from that of packages and of Python."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import CodeType

_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = sysconfig.get_path("stdlib")

_own: list[str] = []
"""Packages, or modules, of which the program of this process is made although they are installed."""


def take_for_own(package: Path) -> None:
    """What lies in it is the program's own from here on: the package that a console script is of."""
    _own.append(f"{package}/" if package.is_dir() else str(package))


def is_programs(code: CodeType) -> bool:
    """Whether it is neither of another installed package nor Python's own."""
    path = code.co_filename
    if path.startswith(tuple(_own)):
        return True
    return not any(part in path for part in _INSTALLED) and not path.startswith((_STANDARD, "<frozen"))
