"""Finds the Python behind a name: a launcher's script, a conda environment, a project of uv, poetry or pixi.

Files and folders are looked at; no tool of theirs is started, for it might install what is missing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

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
        path = os.path.join(folder, os.path.expanduser(word))
        found = path if os.access(path, os.X_OK) else None
    else:
        found = shutil.which(word, path=environment.get("PATH", os.defpath))
    if found is None:
        return ""
    return found if _PYTHON.fullmatch(os.path.basename(word)) else _python_of_script(Path(found), environment)


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
        named = next((each for each in words[1:] if not each.startswith("-") and "=" not in each), "")
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
    return next(filter(None, (python_in(each) for each in _conda_prefixes(name, environment))), "")


def _conda_prefixes(name: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Where an environment of this name may lie, as conda looks for it."""
    home = Path(environment.get("HOME") or "~").expanduser()
    roots = [Path(environment[each]) for each in ("MAMBA_ROOT_PREFIX", "CONDA_ROOT") if environment.get(each)]
    tools = (environment.get("CONDA_EXE"), *(shutil.which(each, path=environment.get("PATH")) for each in ("conda",)))
    roots += [Path(each).resolve().parents[1] for each in tools if each]
    if name == "base":
        yield from roots
        return
    for variable in ("CONDA_ENVS_PATH", "CONDA_ENVS_DIRS"):
        yield from (Path(each) / name for each in environment.get(variable, "").split(os.pathsep) if each)
    yield from (root / "envs" / name for root in roots)
    yield home / ".conda" / "envs" / name
    try:
        listed = (home / ".conda" / "environments.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        listed = []
    yield from (Path(each) for each in listed if os.path.basename(each) == name)


def python_of_project(folder: Path, inside: str = ".venv") -> str:
    """Of the project in which this folder lies: that of the environment `inside` it."""
    start = folder.absolute()
    return next(filter(None, (python_in(each / inside) for each in (start, *start.parents))), "")
