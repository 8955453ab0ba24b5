"""An interpreter and the torch that it has; the Python behind a launcher, a conda environment, a project; and how
planner goes on there, its own code brought along."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from planner.distribution import NAME
from planner.errors import PlannerError
from planner.runtime.child import ROOT, interpreter_words
from planner.runtime.user_cache import user_cache
from planner.versions import installed_version, minor_of

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
        versions = [interpreter.python_version.split(".")[:2] for interpreter in (self, here)]
        return os.path.dirname(self.python) == os.path.dirname(here.python) and versions[0] == versions[1]

    def __str__(self) -> str:
        folder = os.path.dirname(os.path.dirname(self.python))
        return f"torch {self.torch} of {folder}" if self.torch else f"Python {self.python_version} of {folder}"


def this_interpreter() -> Interpreter:
    """That of this process."""
    return Interpreter(sys.executable, platform.python_version(), installed_version("torch"))


def read_interpreter(python: str, *, needs_torch: bool = False) -> Interpreter:
    """The interpreter that this path starts, which may be a script that starts another one.

    Raises PlannerError for what is not a Python, for one that is older than planner's, and for one without torch where
    one is needed.
    """
    import subprocess  # a plan from the store asks nobody, and is not to wait for this

    try:
        # In `/`, for no file beside a program is to stand for a library.
        ended = subprocess.run(
            [python, "-c", _PROBE], cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS,
            text=True, errors="replace", check=False,
        )  # fmt: skip
        interpreter = Interpreter(*json.loads(ended.stdout))
    except subprocess.TimeoutExpired:
        raise _refused(python, f"does not answer within {_SECONDS:g} s") from None
    except OSError as error:
        raise _refused(python, f"cannot be started: {error.strerror}") from None
    except (ValueError, TypeError):
        lines = (ended.stderr or ended.stdout).strip().splitlines() or [f"it ended with {ended.returncode}"]
        raise _refused(python, f"does not answer as a Python: {lines[-1]}") from None
    if tuple(map(int, interpreter.python_version.split(".")[:2])) < OLDEST_PYTHON:
        raise _refused(python, f"is Python {interpreter.python_version}")
    if needs_torch and not interpreter.torch:
        raise PlannerError(
            "this Python has no torch",
            allowed="a Python with torch",
            remedy=f"install it there: {python} -m pip install torch",
            place=python,
        )
    return interpreter


def _refused(python: str, problem: str) -> PlannerError:
    least = ".".join(map(str, OLDEST_PYTHON))
    return PlannerError(
        problem,
        allowed=f"Python {least} or newer",
        remedy=f"name another Python, or make the job's environment with Python {least} or newer",
        place=python,
    )


_FIRST_BYTES = 4096
_EXEC = re.compile(r"""^'''exec' (?:"(?P<quoted>/[^"]+)"|(?P<plain>/\S+)) "\$0" """, re.MULTILINE)
"""How pip writes an interpreter whose path is too long, or has a space, for `#!`."""
_RELOCATABLE = re.compile(r"""^'''exec' .*\$\(realpath -- "\$0"\).*/'?(?P<name>python[0-9.]*)'? "\$0" """, re.MULTILINE)
"""How uv writes that of an environment which may be moved: the one beside the script."""
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")


def python_in(prefix: Path) -> str:
    """The Python of an environment in this folder; empty if there is none."""
    python = prefix / "bin" / "python"
    return str(python) if os.access(python, os.X_OK) else ""


def python_of_command(word: str, folder: Path, environment: Mapping[str, str]) -> str:
    """The Python that runs a command's first word, started in `folder`: it is one, or a script that names one; empty
    where there is no such file, or it names none."""
    if "/" in word:
        file: str | None = os.path.join(folder, os.path.expanduser(word))
    else:
        file = shutil.which(word, path=environment.get("PATH", os.defpath))
    if file is None or not os.access(file, os.X_OK):
        return ""
    return file if _PYTHON.fullmatch(os.path.basename(word)) else _python_of_script(Path(file), environment)


def _python_of_script(path: Path, environment: Mapping[str, str]) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_FIRST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    words = text.partition("\n")[0].removeprefix("#!").split() if text.startswith("#!") else []
    if not words:
        return ""
    if os.path.basename(words[0]) == "env":
        named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
        return (shutil.which(named, path=environment.get("PATH")) or "") if _PYTHON.fullmatch(named) else ""
    if _PYTHON.fullmatch(os.path.basename(words[0])):
        return words[0]
    if match := _EXEC.search(text):
        return match["quoted"] or match["plain"]
    if match := _RELOCATABLE.search(text):
        return str(path.resolve().parent / match["name"])
    return ""


def python_of_conda(name: str, prefix: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Of `conda run -n NAME`, or `-p PREFIX`."""
    if prefix:
        return python_in(folder / os.path.expanduser(prefix))
    if "/" in name:
        return python_in(folder / name)
    return next(filter(None, map(python_in, _conda_prefixes(name, environment))), "")


def _conda_prefixes(name: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Where an environment of this name may lie, as conda looks for it."""
    home = Path(environment.get("HOME") or "~").expanduser()
    roots = [Path(environment[key]) for key in ("MAMBA_ROOT_PREFIX", "CONDA_ROOT") if environment.get(key)]
    tools = environment.get("CONDA_EXE"), shutil.which("conda", path=environment.get("PATH"))
    roots += [Path(tool).resolve().parents[1] for tool in tools if tool]
    if name == "base":
        yield from roots
        return
    for key in ("CONDA_ENVS_PATH", "CONDA_ENVS_DIRS"):
        yield from (Path(folder) / name for folder in environment.get(key, "").split(os.pathsep) if folder)
    yield from (root / "envs" / name for root in roots)
    yield home / ".conda" / "envs" / name
    with contextlib.suppress(OSError, UnicodeDecodeError):
        listed = (home / ".conda" / "environments.txt").read_text(encoding="utf-8").splitlines()
        yield from (Path(path) for path in listed if os.path.basename(path) == name)


def python_of_project(folder: Path, inside: str = ".venv") -> str:
    """Of the project in which this folder lies: that of the environment `inside` it."""
    start = folder.absolute()
    return next(filter(None, (python_in(parent / inside) for parent in (start, *start.parents))), "")


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
