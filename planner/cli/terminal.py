"""How text is drawn for where standard output goes."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.report.style import Style


def style() -> Style:
    """Width, colours and characters of the terminal, or of a file."""
    from planner.report.style import style_of

    return style_of(sys.stdout, os.environ, shutil.get_terminal_size((100, 24)).columns)
