"""Environments of planner's own, one for each minor version of torch, made by uv or by venv and pip."""

from __future__ import annotations

import ast
import fcntl
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from planner.distribution import PLANNING
from planner.errors import PlannerError
from planner.runtime.environments.interpreters import Interpreter
from planner.runtime.user_cache import user_cache
from planner.versions import minor_of


def environment_folder(version: str) -> Path:
    """Where the environment of this torch lies, or would lie."""
    minor = minor_of(version)
    if not minor:
        raise PlannerError(f"{version[:80]!r} is not a version of torch", allowed="two numbers, as 2.8")
    return user_cache() / "environments" / f"torch-{minor}"


def find_environment(version: str) -> Interpreter | None:
    """The environment of this minor version of torch, if it has been made. Only folders are looked at."""
    return _read_folder(environment_folder(version), minor_of(version))


def list_environments() -> Sequence[Interpreter]:
    """All that have been made, from the oldest torch to the newest."""
    folders = (user_cache() / "environments").glob("torch-*")
    made = filter(None, (_read_folder(folder, folder.name.removeprefix("torch-")) for folder in folders))
    return sorted(made, key=lambda interpreter: [int(part) for part in interpreter.minor.split(".")])


def _read_folder(folder: Path, minor: str) -> Interpreter | None:
    python = folder / "bin" / "python"
    for metadata in folder.glob(f"lib/python3.*/site-packages/torch-{minor}.*.dist-info"):
        if python.exists():
            torch = metadata.name.removeprefix("torch-").removesuffix(".dist-info")
            return Interpreter(str(python), metadata.parents[1].name.removeprefix("python"), torch)
    return None


Progress = Callable[[str], None]
_OF_UV = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE")
"""Where one is set, uv's sources are said to uv itself."""
_SOURCES = {"index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links"}
"""pip's settings, and how uv calls them."""


_WITH_TORCH = (*PLANNING, "setuptools")
"""What comes with torch. Triton 3.2, that of torch 2.6, imports setuptools (triton/runtime/build.py) and does not ask
for it; nor does torch up to 2.10, whose `cpp_extension` imports it."""

CUDNN_FOLDER = "cudnn"
"""In an environment whose torch brings a cuDNN that says its workspaces to a GPU alone: one that says them without."""
_CUDNN_WITHOUT_GPU = "nvidia-cudnn-cu12==9.10.2.21"
_CUDNN_WITHOUT_GPU_SINCE = [2, 8]
"""torch 2.8 for CUDA 12 asks for that one; 2.6 and 2.7 ask for 9.1 and 9.5 (their package metadata)."""


def make_environment(version: str, progress: Progress) -> Interpreter:
    """The environment of this minor version of torch, made if it is not there: by uv, or by venv and pip.

    `progress` is told what is done. Raises PlannerError, which says how to make it by hand, where that fails.
    """
    folder, minor = environment_folder(version), minor_of(version)
    if (interpreter := find_environment(version)) is not None:
        return interpreter
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f".{folder.name}.lock", lambda: progress(f"torch {minor} is being made elsewhere")):
        if find_environment(version) is None:
            _make(folder, minor, progress)
    if (interpreter := find_environment(version)) is None:
        raise _failed(folder, minor, "another torch was installed than was asked for")
    return interpreter


@contextmanager
def _locked(path: Path, tell_waiting: Callable[[], None]) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell_waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path, minor: str, progress: Progress) -> None:
    """In a temporary name, and renamed when it is whole: what was broken off is never found."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for command in _commands(temporary, minor):
            _run(command, folder, minor, progress)
        if folder.exists():  # without torch, or its Python has gone
            folder.rename(temporary / "before")
        (temporary / "made").rename(folder)
    except OSError as error:
        raise _failed(folder, minor, str(error)) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _commands(temporary: Path, minor: str) -> list[list[str]]:
    made = str(temporary / "made")
    python = f"{made}/bin/python"
    installs = [[f"torch=={minor}.*", *_WITH_TORCH]]
    if [int(part) for part in minor.split(".")] < _CUDNN_WITHOUT_GPU_SINCE:
        installs.append(["--no-deps", "--target", f"{made}/{CUDNN_FOLDER}", _CUDNN_WITHOUT_GPU])
    if uv := _uv():
        best = ["--index-strategy", "unsafe-best-match"]  # as pip: the newest, whichever source has it
        install = [*uv, "pip", "install", "--python", python, *best, *_sources_of_pip()]
        make = [*uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, made]
    else:
        install, make = [python, "-P", "-m", "pip", "install"], [sys.executable, "-P", "-m", "venv", made]
    return [make, *([*install, *wanted] for wanted in installs)]


def _uv() -> list[str]:
    if program := shutil.which("uv"):
        return [program]
    return [sys.executable, "-P", "-m", "uv"] if importlib.util.find_spec("uv") else []


def _sources_of_pip() -> list[str]:
    """What uv does not read by itself: where pip is told to look for packages."""
    if any(map(os.environ.get, _OF_UV)) or not importlib.util.find_spec("pip"):
        return []
    config = subprocess.run(
        [sys.executable, "-P", "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    words: list[str] = []
    for line in config.stdout.splitlines():
        name, equals, value = line.partition("=")
        option = _SOURCES.get(name.rpartition(".")[2])
        if option and equals:
            words += [word for source in str(ast.literal_eval(value)).split() for word in (option, source)]
    return words


def _run(command: Sequence[str], folder: Path, minor: str, progress: Progress) -> None:
    last = ""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as child:
        assert child.stdout is not None
        for line in filter(None, map(str.strip, child.stdout)):
            last = last if line.startswith("hint:") else line  # uv's advice follows what went wrong
            progress(f"making the environment of torch {minor}: {line[:80]}")
    if child.returncode:
        raise _failed(folder, minor, last or f"it ended with {child.returncode}")


def _failed(folder: Path, minor: str, said: str) -> PlannerError:
    place = shlex.quote(str(folder))
    wanted = shlex.join([f"torch=={minor}.*", *_WITH_TORCH])
    return PlannerError(
        f"the environment of torch {minor} could not be made: {said}",
        allowed="a torch that the package sources of pip or uv have for this Python",
        remedy=f"make it by hand, there: python3 -m venv {place} && {place}/bin/pip install {wanted}",
        place=str(folder),
    )
