"""The command line of an interpreter that runs planner, whichever interpreter it is."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder in which this planner lies."""
_FIRST = "import sys, typing; sys.path.insert(0, sys.argv.pop(1)); import planner; sys.path.append(sys.path.pop(0)); "
"""This planner, whatever else is called so there; then its folder is the last in the path: no file beside planner, or
where it is started (-P), stands for a library."""


def interpreter_words(code: str, *arguments: str, python: str = sys.executable, root: Path = ROOT) -> list[str]:
    """The words that have an interpreter run `code`, with planner at hand and `arguments` in `sys.argv`."""
    return [python, "-P", "-c", _FIRST + code, str(root), *arguments]
