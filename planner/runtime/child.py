"""The command line of a child's interpreter, and what the child does: takes its task, calls the function, answers."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from _thread import stack_size, start_new_thread
from collections.abc import Mapping
from dataclasses import replace
from os import execve  # that of a program under `planner run` changes the environment
from pathlib import Path
from typing import Any, NoReturn

from planner.errors import PlannerError
from planner.runtime.messages import FAULT, MEMORY, PROBLEM, TASKS, AnswerWriter, Task, take_request, task_file

MAIN = "from planner.runtime import child; child.main()"

_scratch: str | None = None
"""Of this process, if it is a child: see Task.scratch."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""linux/prctl.h"""
_MOST_TRACEBACK_CHARACTERS = 8000
_LEAST_STACK_BYTES = 32_768
"""threading.stack_size"""
_FRAME_OF_TORCH = "frame #"
"""torch's own errors list dozens of addresses in its libraries behind what they say."""


def main() -> None:
    """Of a process that was started anew: the pickled task is on its standard input, its parent's id beside it."""
    die_with_parent(int(sys.argv[1]))
    answer = divert_output()
    run(take_request(), answer)


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process with its parent; `parent` 0 is one in another namespace of process ids."""
    if not parent:
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def divert_output() -> int:
    """Keep standard output for the answer: what the function prints goes to standard error."""
    answer = os.dup(1)
    os.set_inheritable(answer, False)
    os.dup2(2, 1)
    return answer


def start_anew(task: Task, answer: AnswerWriter, environment: Mapping[str, str]) -> NoReturn:
    """This process becomes a fresh interpreter that runs the task, with what it has written so far, and answers for
    it."""
    with task_file(replace(task, scratch=_scratch or "")) as request:
        os.dup2(request, 0)
        os.dup2(answer.descriptor, 1)
    words = interpreter_words(MAIN, "0")
    execve(words[0], words, dict(environment))


def run(task: Task, answer: int) -> None:
    """Call the task's function and end this process; does not return."""
    global _scratch
    _scratch = task.scratch or None
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what its own children leave behind stays in its tree
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the paper GPU's address space would make a large core
    writer = AnswerWriter(answer)
    code = 1
    try:
        task.resolve()(task.argument, writer)
        code = 0
    except PlannerError as error:
        writer.write(PROBLEM, problem_text(error))
    except MemoryError:
        writer.write(MEMORY, b"")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
        if not isinstance(leaving.code, int | None):
            print(leaving.code, file=sys.stderr)  # as the interpreter would, at whose end os._exit comes first
    except BaseException:
        lines = traceback.format_exc().splitlines(keepends=True)
        text = "".join(line for line in lines if not line.startswith(_FRAME_OF_TORCH))
        writer.write(FAULT, text[-_MOST_TRACEBACK_CHARACTERS:].encode(errors="replace"))
    finally:
        # Threads or exit handlers of foreign code could keep the process, or change what it has answered.
        with contextlib.suppress(Exception):
            sys.stderr.flush()
            if not _starts_a_thread():
                writer.write(TASKS, b"")
        os._exit(code)


def _starts_a_thread() -> bool:
    stack_size(_LEAST_STACK_BYTES)  # so that memory does not decide
    try:
        start_new_thread(lambda: None, ())
    except RuntimeError:
        return False
    return True


def temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A folder that is gone with its context, and with a child of :func:`planner.runtime.running.run` that ends, or is
    ended, before."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=_scratch)


def problem_text(error: PlannerError) -> bytes:
    """The error as the part PROBLEM: its class and the classes from which that is derived, each `module:name`, and its
    fields; see :func:`planner.runtime.messages.error_of`."""
    kinds = [f"{each.__module__}:{each.__qualname__}" for each in type(error).__mro__ if issubclass(each, PlannerError)]
    return json.dumps(
        {"kinds": kinds, "fields": {name: field for name, field in vars(error).items() if name != "__notes__"}},
        default=str,
    ).encode()


def _prctl(option: int, value: int) -> Any:
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


ROOT = Path(__file__).parents[2]
"""The folder in which this planner lies."""
_FIRST = "import sys, typing; sys.path.insert(0, sys.argv.pop(1)); import planner; sys.path.append(sys.path.pop(0)); "
"""This planner, whatever else is called so there; then its folder is the last in the path: no file beside planner, or
where it is started (-P), stands for a library."""


def interpreter_words(code: str, *arguments: str, python: str = sys.executable, root: Path = ROOT) -> list[str]:
    """The words that have an interpreter run `code`, with planner at hand and `arguments` in `sys.argv`."""
    return [python, "-P", "-c", _FIRST + code, str(root), *arguments]
