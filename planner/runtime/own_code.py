"""Tells a program's own code from that of packages and of Python."""

from __future__ import annotations

import sysconfig
from types import CodeType

_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = sysconfig.get_path("stdlib")


def is_programs(code: CodeType) -> bool:
    """Whether it is neither of an installed package nor Python's own."""
    path = code.co_filename
    return not any(part in path for part in _INSTALLED) and not path.startswith((_STANDARD, "<frozen"))
