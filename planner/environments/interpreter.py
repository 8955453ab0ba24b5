"""What an interpreter is: its Python, and the torch that it has."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.facts.versions import minor_of

OLDEST_PYTHON = (3, 11)
"""planner's own (pyproject.toml)."""
_SECONDS = 30.0
"""An interpreter on a slow network file system; usually it takes hundredths of a second."""
_PROBE = """import json, platform, sys
try:
    from importlib.metadata import version
    torch = version("torch")
except Exception:
    torch = ""
print(json.dumps([sys.executable, platform.python_version(), torch]))
"""
"""Runs in any Python 3: what is installed is read, and none of it is imported."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python with its packages."""

    python: str
    """Its path; a link of a virtual environment, unresolved: what is beside it decides its packages."""
    python_version: str
    torch: str
    """`2.9.1+cu128`; empty without torch."""

    @property
    def minor(self) -> str:
        """Of its torch (`2.9`)."""
        return minor_of(self.torch)

    @property
    def is_this(self) -> bool:
        """Whether its packages are those of this process."""
        here = this_interpreter()
        return os.path.dirname(self.python) == os.path.dirname(here.python) and _same(self, here)

    def __str__(self) -> str:
        folder = os.path.dirname(os.path.dirname(self.python))
        return f"torch {self.torch} of {folder}" if self.torch else f"Python {self.python_version} of {folder}"


def this_interpreter() -> Interpreter:
    """That of this process."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = ""
    return Interpreter(sys.executable, platform.python_version(), torch)


def read_interpreter(python: str, *, needs_torch: bool = False) -> Interpreter:
    """The interpreter that this path starts, which may be a script that starts another one.

    Raises PlannerError for what is no Python, for one that is older than planner's, and for one without torch where
    one is needed.
    """
    import subprocess  # a plan from the store asks nobody, and is not to wait for this

    try:
        ended = subprocess.run(
            [python, "-c", _PROBE],
            cwd="/",  # no file beside a program stands for a library
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            text=True,
            errors="replace",
            check=False,
        )
        found = Interpreter(*json.loads(ended.stdout))
    except subprocess.TimeoutExpired:
        raise _refused(python, f"does not answer within {_SECONDS:g} s") from None
    except OSError as error:
        raise _refused(python, f"cannot be started: {error.strerror}") from None
    except (ValueError, TypeError):
        said = (ended.stderr or ended.stdout).strip().splitlines() or [f"it ended with {ended.returncode}"]
        raise _refused(python, f"is no Python that answers: {said[-1]}") from None
    if tuple(int(each) for each in found.python_version.split(".")[:2]) < OLDEST_PYTHON:
        raise _refused(python, f"is Python {found.python_version}")
    if needs_torch and not found.torch:
        raise PlannerError(
            "this Python has no torch",
            allowed="a Python with torch",
            remedy=f"install it there: {python} -m pip install torch",
            place=python,
        )
    return found


def _same(one: Interpreter, other: Interpreter) -> bool:
    return one.python_version.split(".")[:2] == other.python_version.split(".")[:2]


def _refused(python: str, problem: str) -> PlannerError:
    least = ".".join(map(str, OLDEST_PYTHON))
    return PlannerError(
        problem,
        allowed=f"Python {least} or newer",
        remedy=f"name another Python, or make the job's environment with Python {least} or newer",
        place=python,
    )
