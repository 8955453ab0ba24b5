"""This process goes on as another interpreter, which runs the same command of the same planner."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from planner.environments.brought_code import bring_code
from planner.environments.interpreter import Interpreter
from planner.runtime.bootstrap import interpreter_words

_CODE = "from planner.cli import main; sys.exit(main())"


def go_on_as(interpreter: Interpreter, arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by `planner ARGUMENTS` in the interpreter, planner brought along; the environment stays."""
    words = interpreter_words(_CODE, *arguments, python=interpreter.python, root=bring_code())
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(interpreter.python, words)
