"""This process goes on as another interpreter, which runs the same command of the same planner."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from planner.environments.brought_code import bring_code, is_brought
from planner.environments.interpreter import Interpreter
from planner.runtime.bootstrap import interpreter_words

_VARIABLE, _HERE = "PLANNER_PYTHON", "here"
_CODE = "from planner.cli import main; sys.exit(main())"


def stays_here(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is the interpreter to use: one that planner was brought to, or the user has said so."""
    return is_brought() or environment.get(_VARIABLE) == _HERE


def go_on_as(interpreter: Interpreter, arguments: Sequence[str], standard_input: str = "") -> NoReturn:
    """Replaces this process by `planner ARGUMENTS` in the interpreter, planner brought along; the environment stays.

    `standard_input` is what was read of it, and is to be read again.
    """
    words = interpreter_words(_CODE, *arguments, python=interpreter.python, root=bring_code())
    if standard_input:
        file = os.memfd_create("input")
        os.write(file, standard_input.encode())
        os.lseek(file, 0, os.SEEK_SET)
        os.dup2(file, 0)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(interpreter.python, words)
