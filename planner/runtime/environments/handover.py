"""Goes on as another interpreter, with planner's own code brought to one that has none."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from planner.distribution import NAME
from planner.runtime.child import ROOT, interpreter_words
from planner.runtime.environments.interpreters import Interpreter
from planner.runtime.user_cache import user_cache

_PACKAGE = Path(__file__).parents[2]
_FOLDER = "brought"


def is_brought() -> bool:
    """Whether this process runs in an interpreter to which planner was brought."""
    return ROOT.parent == user_cache() / _FOLDER


def bring_code() -> Path:
    """The folder, made where it is not there yet: links to planner, to what says its version, and to yaml.

    Last in another interpreter's path, its yaml is for those that have none: its pure Python suffices everywhere.
    """
    if is_brought():
        return ROOT
    folder = user_cache() / _FOLDER / hashlib.sha256(str(_PACKAGE).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    yaml = importlib.util.find_spec("yaml")
    targets = [_PACKAGE, *([Path(yaml.origin).parent] if yaml is not None and yaml.origin else [])]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # planner may not be installed
        installed = Path(str(importlib.metadata.distribution(NAME).locate_file("")))
        metadata = (file.parent for file in importlib.metadata.files(NAME) or () if file.name == "METADATA")
        targets += [installed / path for path in itertools.islice(metadata, 1)]
    for target in targets:
        _link(folder / target.name, target)
    return folder


def _link(path: Path, target: Path) -> None:
    with contextlib.suppress(OSError):
        if os.readlink(path) == str(target):
            return
    made = path.with_name(f".{path.name}-{os.getpid()}")
    made.symlink_to(target)
    os.replace(made, path)  # in one step: another process may read it


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
